"""ferry.plan: what the native program computes, as Python objects."""

import math

import pytest

import ferry

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
    assert f"machine, line {line}: " in str(refused.value) and words in str(refused.value)


def touched(experts):
    return 1 - math.comb(256 - experts, 8) / math.comb(256, 8)


def test_experts_that_ranks_do_not_divide():
    """NVL72: 40 of its ranks have four of 256 experts, 32 have three."""
    plan = ferry.plan("rank:72\nlink nvl mesh all port port\nport port 900GB/s", tokens=4096, experts=256, top_k=8)
    assert plan["ranks"] == 72 and "72 ranks in 2 classes" in plan["notes"]
    (load,) = [one for one in best(plan)["loads"] if one["name"] == "port"]
    row = 4096 * 14336  # the busiest direction: in to a rank of four experts, or out of one of three
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
    with pytest.raises(ferry.InvalidArgument, match="'ep=' has no number of ranks"):
        ferry.plan("ubbv2:2", sweep="ep=")
    with pytest.raises(ferry.InvalidArgument, match="64 stages, but mixtral-8x7b has 32 MoE layers"):
        ferry.plan("ubbv2:1", model="mixtral-8x7b", pp=64)
    with pytest.raises(ferry.InvalidArgument, match="did you mean 'limited'?"):
        ferry.plan("ubbv2:2", routing="limted:4/8")
    with pytest.raises(TypeError, match="machine is None"):
        ferry.plan(None)
    with pytest.raises(ferry.InvalidArgument, match="did you mean 'deepseek-v3'"):
        ferry.plan("ubbv2:2", model="deepseek-v2")
