"""The modules of deep_ep.utils, which programs written for DeepEP import beside the buffers: the same names, signatures
and meanings, in our own code, for tensors on the CPU. install.py says under which names they are found."""
