"""ferry.plan: the results of the native program, as Python objects."""

import csv
import io
import json
import math
import re
import subprocess
from pathlib import Path

import pytest

import ferry
from ferry import native_program

ROOT = Path(__file__).parents[2]
LINES = """host:2,rank:4
link in mesh host 50GB/s
link out index host port nic
port nic 13GB/s
"""
JSON = {"tree": "host:2,rank:4",
        "links": [{"name": "in", "mesh": "host", "gb_s": 50}, {"name": "out", "index": "host", "port": "nic"}],
        "ports": [{"name": "nic", "gb_s": 13}]}


def best(plan):
    return plan["predictions"][0]


def test_split_halves_the_published_scheme():
    plan = ferry.plan("ubbv2:2@port10", model="deepseek-v3", ep=16, tokens=4096)
    times = {one["strategy"]: one["bound_us"]["dispatch"] for one in plan["predictions"]}
    assert best(plan)["strategy"] == "split" and plan["sentence"].startswith("split: mate1 limits it")
    assert times["split"] == pytest.approx(2122, abs=1)
    assert times["hierarchical, ib"] == pytest.approx(4501, abs=1)


def test_lines_and_json_are_the_same_machine():
    lines, parsed = ferry.plan(LINES, tokens=128), ferry.plan(JSON, tokens=128)
    assert lines["predictions"] == parsed["predictions"]


def test_loads_of_experts():
    skewed = [3.0] * 8 + [1.0] * 56
    machine = "rank:8\nlink in mesh all port port\nport port 10GB/s"
    hot = ferry.plan(machine, loads=skewed, experts=64, top_k=4)
    flat = ferry.plan(machine, experts=64, top_k=4)
    assert best(hot)["pair_us"] > 1.5 * best(flat)["pair_us"]


def test_ranks_that_all_differ_get_bounds():
    loads = [1 + expert / 256 for expert in range(256)]
    few, many = (ferry.plan(f"h800:{nodes}", loads=loads, experts=256, top_k=8) for nodes in (8, 32))
    for one in few["predictions"]:
        assert one["chunks"] > 0 and one["at_most_us"] == one["pair_us"]
    for one in many["predictions"]:
        assert one["chunks"] == 0 and one["at_most_us"] > one["pair_us"] > 0
        assert one["pair_us"] == pytest.approx(sum(one["bound_us"].values()))


@pytest.mark.parametrize("change, words", [
    ({"ports": [{"name": "nic"}]}, ["port 'nic': its rate (GB/s) is missing"]),
    ({"lnks": []}, ["unknown key 'lnks'", "did you mean 'links'?"]),
    ({"ports": [{"name": "nic", "gb_s": -1}]}, ["'gb_s' is -1, not a positive number"]),
    ({"links": [{"name": "in", "gb_s": 1}]}, ["link 'in' has none of mesh, ring, index, xor, pairs"]),
    ({"links": [{"name": "in", "mesh": "host", "xor": 1}]}, ["link 'in' has two of mesh, ring"]),
    ({"links": [{"name": "in", "pairs": [[0, 1, 2]]}]}, ["[0,1,2] in 'pairs' is not a list of two numbers"]),
    ({"links": {"name": "in"}}, ["'links' is no list"]),
    ({"engines": [{"name": "copy", "gb_s": 1, "sends": 1}]}, ["'sends' is 1, not true or false"]),
])
def test_a_wrong_machine_is_refused(change, words):
    with pytest.raises(ferry.InvalidArgument) as refused:
        ferry.plan({**JSON, **change})
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("link, line, words", [
    ('"gb_s": -3', 5, "'gb_s' is -3"),
    ('"gb_s": 3, "mesh": 8', 5, "'mesh' is 8, not a text"),
    ('"gb_s": 3, "pairs": [[0, 9]]', 4, "position 9 is not in [0, 8)"),
])
def test_a_json_machine_is_refused_by_its_line(tmp_path, link, line, words):
    shape = "" if "pairs" in link or "mesh" in link else '"mesh": "all", '
    (tmp_path / "machine.json").write_text(f"""{{"tree": "host:2,rank:4",
 "links": [
  {{"name": "all", "mesh": "all", "gb_s": 1}},
  {{"name": "wrong",
   {shape}{link}}}]}}""")
    with pytest.raises(ferry.InvalidArgument) as refused:
        ferry.plan(str(tmp_path / "machine.json"))
    assert f"{tmp_path}/machine.json, line {line}: " in str(refused.value) and words in str(refused.value)


@pytest.mark.parametrize("text", ["host:2,rank:4\nlink a mush all 5GB/s", "host:2,rank:4\nlink a mesh host 5GB/s",
                                  "host:0\nlink a mesh all 5GB/s"])
def test_an_error_in_a_file_names_the_file(tmp_path, text):
    file = tmp_path / "machine.txt"
    file.write_text(text)
    with pytest.raises(ferry.InvalidArgument, match=f"ferry plan: {file}[,:]"):
        ferry.plan(str(file))
    with pytest.raises(ferry.InvalidArgument) as refused:
        ferry.plan(text)
    assert "/tmp" not in str(refused.value)


def test_other_files_are_named_too(tmp_path):
    (tmp_path / "machine.txt").write_text("host:2@5GB/s,rank:4")
    with pytest.raises(ferry.InvalidArgument, match=f"{tmp_path}/machine.txt: 6 ranks do not fit machine 'host:2@5"):
        ferry.plan(str(tmp_path / "machine.txt"), ep=6)
    (tmp_path / "bench.json").write_text('{"pair_us": 3}')
    with pytest.raises(ferry.InvalidArgument, match="bench.json': its JSON has no 'options'"):
        run("rank:8@5GB/s", "--expect", tmp_path / "bench.json")
    (tmp_path / "bench.json").write_text('{"pair_us": 3, "options": {"ranks": 8, "tokens": 1, "split": "2"}}')
    with pytest.raises(ferry.InvalidArgument, match="the split '2' of the bench is not of the form 6:2"):
        run("rank:8@5GB/s", "--expect", tmp_path / "bench.json")
    with pytest.raises(ferry.InvalidArgument, match="loads' has 3 loads for 256 experts"):
        ferry.plan("rank:8@5GB/s", loads=[1, 2, 3])


def run(*arguments):
    done = subprocess.run([native_program.path(), "plan", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise ferry.InvalidArgument(done.stderr)
    return done.stdout


def test_a_byte_order_mark_is_left_out(tmp_path):
    for name, text in (("machine.json", json.dumps(JSON)), ("machine.txt", LINES)):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        marked = ferry.plan(str(tmp_path / name), tokens=128)
        assert marked["predictions"] == ferry.plan(LINES, tokens=128)["predictions"]


def test_rates_of_json_in_gbit_per_second():
    gbit = {**JSON, "links": [{"name": "in", "mesh": "host", "gbit_s": 400}, JSON["links"][1]],
            "ports": [{"name": "nic", "gbit_s": 104}]}
    assert ferry.plan(gbit, tokens=128)["predictions"] == ferry.plan(JSON, tokens=128)["predictions"]
    with pytest.raises(ferry.InvalidArgument, match="'gb_s' and 'gbit_s' are one rate"):
        ferry.plan({**JSON, "ports": [{"name": "nic", "gbit_s": 104, "gb_s": 13}]})


def keys_of(value, path=""):
    """The paths of all values that are not objects: "predictions[].loads[].name"."""
    if isinstance(value, dict):
        for key, inside in value.items():
            named = "NAME" if path.endswith("pair_us_if_doubled") else key
            yield from keys_of(inside, f"{path}.{named}" if path else named)
    elif isinstance(value, list):
        yield path + "[]"
        for inside in value:
            yield from keys_of(inside, path + "[]")
    else:
        yield path


def documented_keys():
    """The paths in the first column of the tables of docs/plan_json.md; a header names the lists that its table
    describes."""
    lists, paths = [""], set()
    page = (ROOT / "docs" / "plan_json.md").read_text().split("\n## With `--split`")[0]
    for line in page.split("\n"):
        cell = line.split("|")[1] if line.startswith("|") else ""
        names = re.findall(r"`([^`]+)`", cell)
        if cell.startswith(" key"):
            lists = ["predictions[]." + ("" if name == "predictions[]" else name + ".") for name in names] or [""]
        elif names:
            paths |= {prefix + name for prefix in lists for name in names}
    return paths


def test_the_page_has_every_key_of_the_json_and_no_other():
    plans = [ferry.plan("ubbv2:2@port10", tokens=128), ferry.plan("host:2@5GB/s,rank:4", tp=2, micro_batches=2)]
    printed = {path for plan in plans for path in keys_of(plan)}
    elements = {"predictions[]", "notes[]"} | {f"predictions[].{name}[]" for name in
                                               ("loads", "dispatch_tasks", "combine_tasks")}
    printed -= {path for path in printed if path.endswith("[][]")}
    assert elements <= printed
    assert documented_keys() == printed


TREE = "host:2@10GB/s,rank:2"
SHAPE = dict(tokens=1000, hidden=1000, experts=2, top_k=1)


def test_the_page_has_every_key_of_a_split():
    page = (ROOT / "docs" / "plan_json.md").read_text().split("\n## With `--split`")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in page.split("\n") if line.startswith("| `")]
    printed = set(keys_of(ferry.plan(TREE, split="2:2", **SHAPE)))
    assert {name for cell in cells for name in re.findall("`([^`]+)`", cell)} | {"splits[]"} == printed


def test_rows_of_a_split_leave_the_host_with_tokens():
    """2 ranks x 1000 tokens of 2000 bytes at 10 GB/s; with tokens and experts everywhere half of them stay."""
    (split,) = ferry.plan(TREE, split="2:2", **SHAPE)["splits"]
    assert split["dispatch_us"] == pytest.approx(400, rel=0.01)
    assert split["combine_us"] == pytest.approx(400, rel=0.01)
    everywhere = ferry.plan(TREE, **{**SHAPE, "experts": 4})["predictions"][0]
    assert everywhere["dispatch_us"] == pytest.approx(200, rel=0.01)
    assert split["rows"] == 1000
    windows = split["window_bytes"]
    assert windows["token_rank"]["worst"] == 0 and windows["token_rank"]["expected"] < 200_000
    assert windows["expert_rank"]["expected"] > 1000 * 2000


def test_the_best_split_has_the_most_tokens_per_time_and_rank():
    costs = dict(attention_us=100, expert_row_ns=1000)
    plan = ferry.plan("rank:8", split="all", micro_batches=3, **costs, **SHAPE)
    splits = plan["splits"]
    assert [(each["token_ranks"], each["expert_ranks"]) for each in splits] == [(8 - n, n) for n in range(1, 8)]
    for each in splits:
        tokens, owners = each["token_ranks"], each["expert_ranks"]
        assert each["experts_us"] == pytest.approx(1000 * tokens / owners)
        assert each["overlapped_us"] == max(100, each["experts_us"], each["dispatch_us"], each["combine_us"])
        assert each["tokens_per_us"] == pytest.approx(1000 * tokens / each["overlapped_us"] / 8)
    best = max(splits, key=lambda each: each["tokens_per_us"])
    assert plan["best"] == {"token_ranks": best["token_ranks"], "expert_ranks": best["expert_ranks"]}


@pytest.mark.parametrize("split, why", [
    ("3", "'3' is not of the form 12:4,8:8"), ("0:4", "'0:4' is not"),
    ("1:2:3", "'1:2:3' is not"), ("2:2,", "'2:2,' is not"), ("2:-2", "'2:-2' is not"),
    ("2:65537", "'2:65537' is not"), ("2:1", "3 ranks do not fit"),
])
def test_a_split_that_cannot_be_planned_is_refused(split, why):
    with pytest.raises(ferry.InvalidArgument, match=why):
        ferry.plan(TREE, split=split, **SHAPE)
    with pytest.raises(ferry.InvalidArgument, match="has [0-9]+ kinds of links"):
        ferry.plan("ubbv2:2", split="8:8")


def test_the_page_has_every_column_of_the_csv():
    text = (ROOT / "docs" / "plan_json.md").read_text().split("Columns have the names")[1]
    assert re.findall(r"`([^`]+)`", text) == run("rank:8@5GB/s", "--csv").split("\n")[0].split(",")


@pytest.mark.parametrize("key, values, read", [
    ("tokens", [0, 128, 4096], lambda plan: plan["tokens"]),
    ("hidden", [64, 7168], lambda plan: plan["hidden"]),
    ("top-k", [1, 8], lambda plan: plan["top_k"]),
    ("experts", [16, 100], lambda plan: plan["experts"]),
    ("ep", [8, 16], lambda plan: plan["ranks"]),
    ("chunks", [1, 32], lambda plan: plan["chunks"]),
    ("tp", [1, 4], lambda plan: plan["parallel"]["tp"]),
    ("pp", [1, 7], lambda plan: plan["parallel"]["pp"]),
    ("micro-batches", [1, 2], lambda plan: plan["parallel"]["micro_batches"]),
    ("compute-us", [0, 500], lambda plan: plan["parallel"]["compute_us"]),
])
def test_any_number_of_the_shape_can_be_swept(key, values, read):
    points = ferry.plan("ubbv2:2", sweep=f"{key}={','.join(map(str, values))}")
    assert [read(point) for point in points] == values
    alone = ferry.plan("ubbv2:2", **{key.replace("-", "_"): values[1]})
    assert points[1] == alone


def test_a_sweep_is_refused_by_its_key_and_value():
    for sweep, words in (("token=1,2", "did you mean 'tokens'"), ("tokens", "not of the form ep=16,32"),
                         ("top-k=33", "top-k '33' is not a number from 1 to 32"), ("tp=", "'tp=' has no number")):
        with pytest.raises(ferry.InvalidArgument, match=words):
            ferry.plan("ubbv2:2", sweep=sweep)
    with pytest.raises(ferry.InvalidArgument, match="--sweep tokens=1,2 and --tokens give one value twice"):
        ferry.plan("ubbv2:2", sweep="tokens=1,2", tokens=4)


def test_csv_has_a_line_for_each_point_and_strategy():
    rows = list(csv.DictReader(io.StringIO(run("ubbv2:2@port10", "--sweep", "tokens=128,4096", "--csv"))))
    points = ferry.plan("ubbv2:2@port10", sweep="tokens=128,4096")
    assert len(rows) == sum(len(point["predictions"]) for point in points) == 14
    for row, (point, one) in zip(rows, [(point, one) for point in points for one in point["predictions"]]):
        assert row["strategy"] == one["strategy"] and float(row["pair_us"]) == one["pair_us"]
        assert int(row["tokens"]) == point["tokens"] and int(row["window_bytes"]) == point["window_bytes"]["expected"]
    assert list(csv.reader(io.StringIO(run("host:2@5GB/s,rank:4", "--csv"))))[1][0] == "host:2@5GB/s,rank:4"


def test_layers_that_stages_do_not_divide_are_told():
    plan = ferry.plan("h800:8", model="deepseek-v3", pp=7)
    assert any("58 layers do not divide into 7 stages" in note for note in plan["notes"])
    assert "58 layers in 7 stages of at most 9" in run("h800:8", "--model", "deepseek-v3", "--pp", 7)


def touched(experts):
    return 1 - math.comb(256 - experts, 8) / math.comb(256, 8)


def test_experts_that_ranks_do_not_divide():
    """NVL72: 40 of its ranks have four of 256 experts, 32 have three."""
    plan = ferry.plan("rank:72\nlink nvl mesh all port port\nport port 900GB/s", tokens=4096, experts=256, top_k=8)
    assert plan["ranks"] == 72 and "72 ranks in 2 classes" in plan["notes"]
    (load,) = [one for one in best(plan)["loads"] if one["name"] == "port"]
    row = 4096 * 14336  # the busiest direction: into a rank of four experts, or out of one of three
    assert load["dispatch_bytes"] == pytest.approx(row * max(71 * touched(4), 40 * touched(4) + 31 * touched(3)))
    assert ferry.plan("rank:16@5GB/s", experts=8, top_k=2)["ranks"] == 16  # half of the ranks have none
    swept = ferry.plan("ubbv2:1", sweep="ep=8,24", experts=256)
    assert [one["ranks"] for one in swept] == [8, 24]


def test_a_machine_of_another_size_is_told():
    assert ferry.plan("ubbv2:2", ep=16)["notes"][-1] != ferry.plan("ubbv2:2", ep=32)["notes"][-1]
    assert ferry.plan("ubbv2:2", ep=32)["notes"][-1] == "ubbv2:2 as it would be with 32 ranks in place of 16"


def test_what_does_not_fit_is_refused():
    with pytest.raises(ferry.InvalidArgument, match="20 ranks do not fit"):
        ferry.plan("ubbv2:2", ep=20)
    with pytest.raises(ferry.InvalidArgument, match="compute of nan us"):
        ferry.plan("ubbv2:2", compute_us=float("nan"))
    with pytest.raises(ferry.InvalidArgument, match="'ep=' has no number"):
        ferry.plan("ubbv2:2", sweep="ep=")
    with pytest.raises(ferry.InvalidArgument, match="64 stages, but mixtral-8x7b has 32 MoE layers"):
        ferry.plan("ubbv2:1", model="mixtral-8x7b", pp=64)
    with pytest.raises(ferry.InvalidArgument, match="did you mean 'limited'?"):
        ferry.plan("ubbv2:2", routing="limted:4/8")
    with pytest.raises(TypeError, match="machine is None"):
        ferry.plan(None)
    with pytest.raises(ferry.InvalidArgument, match="did you mean 'deepseek-v3'"):
        ferry.plan("ubbv2:2", model="deepseek-v2")
