"""ferry's implementation of the modules of deep_ep.utils, for CPU tensors. Names, signatures and results are those of
DeepEP. install.py lists the names by which programs import them."""
