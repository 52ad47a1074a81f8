"""Benchmarks: programs print one JSON object each, and this package measures, compares, tabulates and draws.

    programs, measure                 what is measured, and runs that take turns in rounds
    work, rank, pipeline              the Python side of a comparison: ferry, and the usual pipeline over Gloo and MPI
    results, words                    what runs say: times, ratios within a round, texts and tables
    compare, plot                     `ferry compare`, `ferry plot`
    layer                             a whole layer in several ways
    style, *_chart                    pictures

What serves the repository of ferry only, `make bench` and `make gallery`, is in its folder bench/suite.
"""
