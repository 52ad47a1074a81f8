"""Benchmarks: programs print one JSON object each, and this package measures, compares, tabulates and draws.

    programs, measure                 the programs that are measured; runs of them that take turns in rounds
    work, rank, pipeline              the Python side of a comparison: ferry, and the usual pipeline over Gloo and MPI
    results, words                    results of runs: times, ratios within a round, texts and tables
    places                            whether the cores were moved between runs
    page                              a report as one HTML page
    compare, plot                     `ferry compare`, `ferry plot`
    layer                             times of a whole layer, computed in several ways
    style, *_chart                    pictures

`make bench` and `make gallery` of ferry's repository are in its folder bench/suite, which is not installed.
"""
