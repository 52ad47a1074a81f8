"""The page of --report: its data is whole, nothing comes from a network, and a browser draws it without an error."""

import json
import re
import shutil
import subprocess

import pytest

from ferry import native_program
from ferry.bench import page

BENCH = ["bench", "--ranks", "2", "--tokens", "4", "--hidden", "64", "--experts", "4", "--top-k", "2", "--iterations",
         "4", "--routing", "real"]
BROWSER = shutil.which("chromium")


def native(*arguments):
    return subprocess.run([native_program.path(), *map(str, arguments)], capture_output=True, text=True)


def data_of(file):
    text = file.read_text()
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(|https?://(?!www\.w3\.org/)", text)
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_of_a_bench_says_who_sends_how_much_to_whom(tmp_path):
    done = native(*BENCH, "--json", "--report", tmp_path / "bench.html")
    assert done.returncode == 0, done.stderr
    data, told = data_of(tmp_path / "bench.html"), json.loads(done.stdout.split("\n")[-2])
    assert data["bench"] == told
    assert sum(map(sum, data["rows"])) == sum(map(sum, data["experts"])) == told["rows"] == 16
    assert data["rows"][0][1] + data["rows"][1][0] == told["remote_rows"]
    assert [len(own) for own in data["experts"]] == [2, 2]
    assert {event["tid"] for event in data["trace"]} == {0, 1}


def test_the_page_of_a_sweep_has_its_points_and_no_timeline(tmp_path):
    assert native(*BENCH, "--sweep", "tokens=1,2", "--report", tmp_path / "sweep.html").returncode == 0
    data = data_of(tmp_path / "sweep.html")
    assert [point["tokens"] for point in data["bench"]["points"]] == [1, 2] and "trace" not in data


def test_the_page_of_a_topology_has_the_bytes_of_each_link(tmp_path):
    assert native("topology", "host:2@12.5GB/s,rank:4", "--report", tmp_path / "tree.html").returncode == 0
    found = data_of(tmp_path / "tree.html")["topology"]
    assert found["auto"]["algorithm"] == "hierarchical" and set(found["level_bytes"]["fullmesh"]) == {"host", "rank"}


PLAN = ["plan", "ubbv2:2@port10", "--model", "deepseek-v3"]


def test_the_page_of_a_plan_has_its_links_and_tasks(tmp_path):
    assert native(*PLAN, "--report", tmp_path / "plan.html").returncode == 0
    planned = data_of(tmp_path / "plan.html")["plan"]
    links = {kind["name"]: kind for kind in planned["links"]}
    assert [len(links[name]["pairs"]) for name in ("peer", "mate1", "ib", "port10")] == [24, 8, 8, 8]
    assert links["ib"]["load"] == "nic" and [0, 12] in links["port10"]["pairs"]
    best = planned["predictions"][0]
    assert {load["name"] for load in best["loads"]} == {kind["load"] for kind in planned["links"]}
    assert max(task["end_us"] for task in best["dispatch_tasks"]) == pytest.approx(best["dispatch_us"])


def test_a_page_of_a_sweep_of_plans_is_refused(tmp_path):
    done = native(*PLAN, "--sweep", "ep=16,32", "--report", tmp_path / "plan.html")
    assert done.returncode == 2 and "--report, --timeline: of one size, not of --sweep" in done.stderr


@pytest.mark.parametrize("command", [BENCH, ["topology", "rank:2"], PLAN])
def test_a_page_that_cannot_be_written_is_told(command, tmp_path):
    done = native(*command, "--report", tmp_path / "none" / "page.html")
    assert done.returncode == 1 and f"cannot write '{tmp_path}/none/page.html'" in done.stderr


def test_text_in_the_data_cannot_end_its_element(tmp_path):
    page.write_page(tmp_path / "page.html", "</script><script>alert(1)</script>", [page.when_and_where()], runs=[])
    assert data_of(tmp_path / "page.html")["title"] == "</script><script>alert(1)</script>"


def runs():
    options = {"ranks": 2, "hidden": 64, "experts": 4, "top_k": 2}
    return [{"section": "shapes", "case": [16, 64, 2, 4], "program": program, "round": number,
             "result": {"options": options, "tokens": 16, "pair_us": {"median": us + number}}}
            for number in range(2) for program, us in (("ferry", 10), ("Gloo", 70))]


# Presses keys on the timeline, and writes the text of its axis after each key into the page.
KEYS = """<script>
const svg = document.querySelector('svg[tabindex]')
const axis = () => [...svg.querySelectorAll('.quiet')].map(text => text.textContent).join(', ')
const told = [[3.6e-12, -3390, -2.5e6].map(time).join(', '), axis()]
svg.focus()
for (const key of ['+', 'ArrowRight', 'ArrowLeft', '-', '-']) {
  document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
  told.push(axis())
}
document.body.dataset.told = told.join(' | ')
</script>"""


def dom(file):
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                           f"--user-data-dir={file.parent}/profile", "--dump-dom", f"file://{file}"],
                          capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no chromium: scripts/install.sh browser")
def test_keys_zoom_and_move_the_timeline(tmp_path):
    native(*BENCH, "--report", tmp_path / "bench.html")
    (tmp_path / "keys.html").write_text((tmp_path / "bench.html").read_text() + KEYS)
    told = re.search(r'data-told="([^"]*)"', dom(tmp_path / "keys.html"))[1].split(" | ")
    assert told[0] == "0 us, -3.39 ms, -2.50 s"
    first, nearer, right, left, back, farther = told[1:]
    assert first == back != nearer == left != right and farther != back


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no chromium: scripts/install.sh browser")
def test_a_page_of_many_tasks_draws_the_links_first_and_the_longest_tasks(tmp_path):
    pairs = ",".join(f"{rank}-{(rank * 5 + 3) % 16}" for rank in range(16) if rank < (rank * 5 + 3) % 16)
    native("plan", f"rank:16\nlink a ring all 9GB/s\nlink b pairs {pairs} 7GB/s", "--report", tmp_path / "plan.html")
    best = data_of(tmp_path / "plan.html")["plan"]["predictions"][0]
    assert len(best["dispatch_tasks"]) > 40
    drawn = dom(tmp_path / "plan.html")
    titles = re.findall(r"<h2>(.*?)</h2>", drawn)
    assert titles == ["Strategies", "Loads", "Links, as wide as their bytes", "Tasks in time"]
    tasks = drawn.split("Tasks in time</h2>")[1].split("</svg>")[0]
    assert tasks.count("<rect") == 40 and re.search(r"40 of \d+ bars", tasks)


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no chromium: scripts/install.sh browser")
def test_a_browser_draws_every_page(tmp_path):
    native(*BENCH, "--report", tmp_path / "bench.html")
    native("topology", "host:2@12.5GB/s,rank:4", "--report", tmp_path / "topology.html")
    native(*PLAN, "--report", tmp_path / "plan.html")
    page.write_page(tmp_path / "compare.html", "compare", ["words"], runs=runs())
    for name, sections in (("bench", 5), ("topology", 2), ("plan", 4), ("compare", 1)):
        drawn = dom(tmp_path / f"{name}.html")
        assert f'data-drawn="{sections}"' in drawn and "NaN" not in drawn
