"""Tests whether an implementation of DeepEP's or torch_npu's calls keeps their contract, clause by clause.

    python -m ferry.conformance --api deep_ep --module ferry.deep_ep --ranks 2

This command runs every clause on ranks that are processes, and prints which clauses hold. docs/conformance.md describes
them. The oracles (deep_ep_oracle, elastic_oracle, low_latency_case, torch_npu_oracle) compute the expected results from
the inputs of all ranks, in simple torch code. They share no code with ferry; ferry's own tests use them too.

A copy of this folder runs alone, under any name: it imports torch, numpy and the module that it judges.
"""
