"""The conformance kit: ferry's fronts and a naive implementation keep every clause, and each fault that is planted in
the naive one is caught by the clause that is about it."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

pytest.importorskip("torch")

from ferry import conformance
from ferry.conformance.__main__ import main
from ferry.conformance.session import Session, UnknownClause
from naive_deep_ep import FAULTS

pytestmark = pytest.mark.long

HERE = Path(__file__).parent

CAUGHT_BY = {
    "signature_renamed": "names.buffer", "unused_counted": "layout.experts", "token_counted_per_expert": "layout.ranks",
    "rows_by_token": "dispatch.rows", "ids_global": "dispatch.topk_idx", "weights_unmasked": "dispatch.topk_weights",
    "alignment_ignored": "dispatch.expert_alignment", "scales_of_neighbour": "dispatch.scales",
    "prefix_exclusive": "dispatch.handle", "cached_stale": "dispatch.cached", "sum_in_bfloat16": "combine.bias",
    "bias_last": "combine.bias", "home_weights_of_one_rank": "combine.topk_weights",
    "result_overwritten": "dispatch.kept_results", "source_tokens_shifted": "low_latency.rows",
    "statistics_overwritten": "low_latency.statistics", "scale_not_clamped": "low_latency.fp8",
    "weights_rounded": "low_latency.combine", "out_ignored": "low_latency.out",
    "zero_copy_ignored": "low_latency.zero_copy", "expert_start_unaligned": "elastic.expanded_rows",
    "partial_not_rounded": "elastic.combine_expanded", "dies": "combine.sum", "hangs": "elastic.barrier",
}
UNHARMED = "elastic.combine"  # the faults of other calls do not change it


@pytest.fixture(scope="module")
def session():
    with Session("deep_ep", 2, deadline=20) as session:
        yield session


def broken(verdicts):
    return {verdict.name: verdict.complaints for verdict in verdicts if not verdict.holds}


@pytest.mark.parametrize("module", ["ferry.deep_ep", "naive_deep_ep"])
def test_every_clause_holds(session, module):
    verdicts = list(session.judge(module))
    assert not broken(verdicts) and len(verdicts) == len(session.clauses) >= 60


@pytest.mark.parametrize("module", ["ferry.deep_ep", "naive_deep_ep"])
def test_four_ranks_with_another_seed(module):
    names = ["dispatch.rows", "combine.sum", "low_latency.fp8", "elastic.expanded_rows", "elastic.combine_expanded"]
    with Session("deep_ep", 4, seed=9) as session:
        assert not broken(session.judge(module, names))


def test_ferrys_front_of_torch_npu():
    with Session("torch_npu", 2) as session:
        verdicts = list(session.judge("ferry.torch_npu"))
    assert not broken(verdicts) and len(verdicts) >= 12


def test_every_fault_has_its_clause():
    assert set(CAUGHT_BY) == set(FAULTS) and len(FAULTS) >= 20


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ("dies", "hangs")])
def test_a_planted_fault_is_caught_by_name(session, fault):
    found = broken(session.judge(f"naive_deep_ep:{fault}", [CAUGHT_BY[fault], UNHARMED]))
    assert list(found) == [CAUGHT_BY[fault]], FAULTS[fault]


def test_a_rank_that_ends_or_hangs_does_not_end_the_session():
    with Session("deep_ep", 2, deadline=1) as session:
        found = broken(session.judge("naive_deep_ep:dies", ["combine.sum", UNHARMED]))
        assert list(found) == ["combine.sum"] and any("exit code 7" in text for text in found["combine.sum"])
        found = broken(session.judge("naive_deep_ep:hangs", ["elastic.barrier", UNHARMED]))
        assert list(found) == ["elastic.barrier"]


def run(*words):
    return subprocess.run([sys.executable, "-m", "ferry.conformance", *words], capture_output=True, text=True,
                          timeout=120, cwd=HERE)


def test_the_report_says_what_is_wrong_and_how_to_see_it_again(tmp_path):
    words = ["--api", "deep_ep", "--module", "naive_deep_ep:bias_last", "--seed", "3"]
    file = tmp_path / "verdicts.json"
    done = run(*words, "--clause", "combine.bias", "--clause", "layout.ranks", "--json", str(file))
    assert done.returncode == 1, done.stderr
    assert "BROKEN  combine.bias" in done.stdout and "holds   layout.ranks" in done.stdout
    assert "1 clauses of deep_ep hold, 1 do not" in done.stdout
    told = json.loads(file.read_text())
    bad, good = told["clauses"]
    assert not told["holds"] and good["holds"] and not bad["holds"] and "combined_x with two[" in bad["complaints"][0]
    assert bad["again"] == f"python -m ferry.conformance {' '.join(words[:4])} --ranks 2 --seed 3 --clause combine.bias"
    assert bad["again"] in done.stdout


def test_a_copy_of_the_kit_runs_without_ferry(tmp_path):
    shutil.copytree(Path(conformance.__file__).parent, tmp_path / "kit")
    (tmp_path / "ferry.py").write_text("raise ImportError('ferry is not installed here')")
    words = ["--api", "deep_ep", "--module", "naive_deep_ep:bias_last", "--clause", "combine.bias", "--clause",
             "low_latency.rows"]
    done = subprocess.run([sys.executable, "-m", "kit", *words], capture_output=True, text=True, timeout=120,
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(HERE)})
    assert "BROKEN  combine.bias" in done.stdout and "holds   low_latency.rows" in done.stdout, done.stderr
    assert "again: python -m kit --api deep_ep --module naive_deep_ep:bias_last" in done.stdout


def test_no_file_of_the_kit_imports_ferry():
    for file in Path(conformance.__file__).parent.glob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
        assert not [name for name in names if name.split(".")[0] == "ferry"], file.name


ONLY_13_AND_2 = """
import torch, naive_deep_ep
from naive_deep_ep import *

class Buffer(naive_deep_ep.Buffer):
    def get_dispatch_layout(self, topk_idx, *more):
        assert (topk_idx == torch.tensor([13, -1, 2])).all(), topk_idx
        return super().get_dispatch_layout(topk_idx, *more)
"""


def test_clauses_take_the_ids_of_a_router_trace(tmp_path, monkeypatch, capsys):
    (tmp_path / "only_13_and_2.py").write_text(ONLY_13_AND_2)
    monkeypatch.syspath_prepend(tmp_path)
    numpy.save(tmp_path / "ids.npy", numpy.tile(numpy.int32([[0, 1, 2], [13, -1, 2]]), (20, 1, 1)))
    words = ["--api", "deep_ep", "--module", "only_13_and_2", "--clause", "trace.normal"]
    assert main([*words, "--routing", f"{tmp_path}/ids.npy:1"]) == 0, capsys.readouterr().out
    assert main([*words, "--routing", f"{tmp_path}/ids.npy"]) == 1  # layer 0
    said = capsys.readouterr().out
    assert "tensor([[0, 1, 2]" in said and f"--seed 1 --routing {tmp_path}/ids.npy --clause trace.normal" in said
    assert main([*words[:3], "ferry.deep_ep", "--clause", "trace.low_latency", "--clause", "trace.elastic",
                 "--routing", f"{tmp_path}/ids.npy:1"]) == 0, capsys.readouterr().out
    assert main(["--api", "torch_npu", "--module", "ferry.torch_npu", "--clause", "trace.distribute",
                 "--routing", f"{tmp_path}/ids.npy"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("ids, layer, said", [
    (numpy.zeros((4, 3), int), "", "has int64 [4, 3], need integers [tokens, layers, top_k]"),
    (numpy.zeros((4, 3, 9), int), "", "a top_k of 1 to 8"), (numpy.zeros((4, 3, 2)), "", "has float64 [4, 3, 2]"),
    (numpy.zeros((4, 3, 2), int), ":3", "which has 3 layers"), (numpy.full((1, 1, 1), -2), "", "ids from -2 to -2"),
    (numpy.full((1, 1, 1), 1024), "", "need -1 to 1023"), (None, "", "No such file")])
def test_files_that_are_no_router_trace(tmp_path, capsys, ids, layer, said):
    if ids is not None:
        numpy.save(tmp_path / "ids.npy", ids)
    with pytest.raises(SystemExit) as ended:
        main(["--api", "deep_ep", "--module", "naive_deep_ep", "--routing", f"{tmp_path}/ids.npy{layer}"])
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [
    (["--api", "deep_ep", "--module", "no_such_module"], "No module named 'no_such_module'"),
    (["--api", "deep_ep", "--module", "json:Buffer"], "has no attribute 'Buffer'"),
    (["--api", "deep_ep", "--module", "unimportable"], "FileNotFoundError: [Errno 2]"),
    (["--api", "deep_ep"], "--module is needed"), (["--api", "nccl", "--module", "json"], "invalid choice: 'nccl'"),
    (["--api", "deep_ep", "--module", "json", "--ranks", "9"], "--ranks 9: 1 to 8 are possible"),
    (["--api", "deep_ep", "--module", "json", "--clause", "nothing"], "no clause nothing; there are names.exports")])
def test_wrong_arguments(words, said, capsys, tmp_path, monkeypatch):
    (tmp_path / "unimportable.py").write_text("open('/sys/class/no_such_device')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and said in capsys.readouterr().err


def test_the_list_of_clauses(capsys):
    assert main(["--api", "torch_npu", "--list"]) == 0 and "distribute.v2: " in capsys.readouterr().out


def test_a_module_without_the_interface_breaks_every_clause_but_ends():
    with Session("deep_ep", 1, deadline=10) as session:
        found = broken(session.judge("json", ["names.exports", "dispatch.rows"]))
    assert "Buffer is missing" in found["names.exports"][0] and "no attribute 'Buffer'" in found["dispatch.rows"][0]


def test_an_unknown_clause_is_named():
    with Session("deep_ep", 1) as session, pytest.raises(UnknownClause, match="no clause x.y; there are"):
        list(session.judge("json", ["x.y"]))
