"""A judge for implementations of DeepEP's and torch_npu's calls: the contract, clause by clause, with ferry's oracles.

    python -m ferry.conformance --api deep_ep --module ferry.deep_ep --ranks 2

runs every clause on ranks that are processes and says which hold. docs/conformance.md has the list. The oracles
(deep_ep_oracle, elastic_oracle, low_latency_case, torch_npu_oracle) are slow torch over the inputs of all ranks; they
share nothing with ferry, whose own tests use them too.
"""
