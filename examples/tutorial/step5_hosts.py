# Step 5: step 4 on two hosts. A launcher starts the ranks, and each rank finds its job in the environment:
#     ferry launch --hosts a:2,b:2 -- python step5_hosts.py
# One machine can play both hosts:
#     FERRY_TOPOLOGY=host:2,rank:2 ferry launch -n 4 -- python step5_hosts.py
import ferry
import torch
from step4_layer import run

torch.set_num_threads(1)
with ferry.init() as group:
    assert group.topology == "host:2,rank:2"
    print(run(group))
    group.barrier()
