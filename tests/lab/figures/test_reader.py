"""Experiment files: what they expand to, and what is said of those that make no sense."""

import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retarget.errors import InvalidInputError
from retarget.lab.experiment import families
from retarget.lab.figures.training import NetworkRun
from retarget.lab.methods import recipes
from retarget.lab.reader import (
    LARGEST_FILE,
    experiment_names,
    load_experiment,
    named_experiments,
    parse_changes,
    parse_experiment,
)
from retarget.lab.runs.run import run_experiment
from support.made_runs import SMALL_DIGITS

DOCS = Path(__file__).parents[3] / "docs" / "experiments.md"
CORE50 = """
family = "core50 curves"
title = "handed"
seeds = [0]
[parameters]
method = "vanilla"
lr = 0.1
data = "core50"
frames_per_session = 1
"""


@pytest.fixture(scope="module")
def small():
    return parse_experiment("small", SMALL_DIGITS)


# What a file expands to


def test_a_case_is_stronger_than_what_all_have():
    text = SMALL_DIGITS + (
        "[cases.a]\nparameters = { lr = 0.5, width = 2.0 }\n"
        "[cases.b]\nseeds = [7]\ngrid = { width = [1.0, 3.0] }\n[cases.c]\n"
    )
    planned = parse_experiment("x", text).planned_runs()
    labels = ("lr", "width")
    for run in planned:
        assert [run.labels[name] for name in labels] == [getattr(run.config, n) for n in labels]
    assert [
        (run.labels["case"], run.config.seed, run.config.lr, run.config.width) for run in planned
    ] == [
        ("a", 3, 0.5, 2.0), ("a", 4, 0.5, 2.0),
        ("b", 7, 0.001, 1.0), ("b", 7, 0.001, 3.0), ("b", 7, 0.1, 1.0), ("b", 7, 0.1, 3.0),
        ("c", 3, 0.001, 4.0), ("c", 3, 0.1, 4.0), ("c", 4, 0.001, 4.0), ("c", 4, 0.1, 4.0),
    ]  # fmt: skip


def test_a_grid_expands_to_every_combination(small):
    found = [(run.seed, run.lr) for run in small.runs()]
    assert found == [(3, 1e-3), (3, 0.1), (4, 1e-3), (4, 0.1)]
    changed = small.changed(parse_changes(["gamma=2.5", "lr=0.5"], seeds=[9]))
    assert [(run.seed, run.gamma, run.lr) for run in changed.runs()] == [(9, 2.5, 0.5)]
    assert small.changed(parse_changes([])) == small
    assert parse_changes(["a = [1, 2]", 'b = "x"']).parameters == {"a": [1, 2], "b": "x"}
    with pytest.raises(InvalidInputError, match="parameters.widht: .* 'width'"):
        small.changed(parse_changes(["widht=3.0"])).runs()


def test_experiments_are_valid_and_smaller_if_quick():
    assert experiment_names() == [
        "digits", "fig1", "fig2", "fig3a", "fig3a-methods", "fig3b", "fig3b-methods", "fig3c",
        "fig4", "fig5", "fig6ad", "fig6eh", "fig7a", "fig7b", "fig7c", "fig7d",
        "fig7e", "fig8", "fig8-tuning",
    ]  # fmt: skip
    for name in experiment_names():
        whole = load_experiment(name)
        assert whole.runs()
        if whole.quick:
            quick = whole.small()
            assert len(quick.runs()) < len(whole.runs())
            cases = {run.labels.get("case") for run in quick.planned_runs()}
            assert cases == set(whole.cases or [None])
            for size in whole.quick.parameters.keys() - {"lr", "gamma"}:
                full = largest_by_case(whole, size)
                shrunk = largest_by_case(quick, size)
                assert all(shrunk[case] <= full[case] for case in full)
                assert shrunk != full


def largest_by_case(experiment, parameter):
    """The largest value of a parameter in each case; None, a network's own or all, is infinite."""
    largest = {}
    for run in experiment.planned_runs():
        value = getattr(run.config, parameter)
        value = math.inf if value is None else value
        case = run.labels.get("case")
        largest[case] = max(largest.get(case, 0), value)
    return largest


def test_a_case_has_its_own_small_version():
    text = f"""{SMALL_DIGITS}
    [cases.few]
    parameters = {{ block_size = 30 }}
    quick = {{ parameters = {{ block_size = 5 }} }}
    [cases.swept]
    grid = {{ lr = [0.1, 0.2, 0.3] }}
    quick = {{ seeds = [7], grid = {{ lr = [0.4] }} }}
    [quick]
    seeds = [3]
    parameters = {{ block_size = 10, curve_every = 11 }}
    """
    small = parse_experiment("small", text).small()
    found = [
        (run.labels["case"], config.seed, config.lr, config.block_size, config.curve_every)
        for run in small.planned_runs()
        for config in [run.config]
    ]
    assert [case for case in found if case[0] == "swept"] == [("swept", 7, 0.4, 10, 11)]
    assert {case[3:] for case in found if case[0] == "few"} == {(5, 11)}
    assert {case[1] for case in found if case[0] == "few"} == {3}
    many = f"quick = {{ grid = {{ lr = {list(range(1, 50_002))} }} }}"
    with pytest.raises(InvalidInputError, match="grid: makes 100002 runs"):
        parse_experiment("small", f"{SMALL_DIGITS}[cases.a]\n{many}")


def test_a_variant_leads_to_no_other_folder():
    text = f'variant = "backbone"\n{CORE50}backbone = "../a b/w.pth"'
    assert parse_experiment("x", text).label == "x-.._a_b_w.pth"


# What is said of files that make no sense

WIDTH, SEEDS, GRID = "width = 4.0", "seeds = [3, 4]", "lr = [0.001, 0.1]"


@pytest.mark.parametrize(
    ("old", "new", "place", "message"),
    [
        (SEEDS, f"{SEEDS}\nfoo = 3", "foo", "unknown key; known: family, title, seeds, parameters"),
        (SEEDS, f'{SEEDS}\nname = "x"', "name", "unknown key; the name is the file's"),
        ("[grid]", "[grids]", "grids", "unknown key; did you mean 'grid'"),
        ('title = "small"', "", "title", "missing"),
        ('"digits"', '"digit"', "family", "got 'digit'; did you mean 'digits'? known: cifar"),
        (SEEDS, "seeds = []", "seeds", "at least 1 item"),
        (SEEDS, 'seeds = [1, "2"]', "seeds.1", "got '2'; expected a valid integer"),
        (SEEDS, "seeds = [-1]", "seeds.0", "got -1; expected greater than or equal to 0"),
        (SEEDS, "seeds = [3, 1, 3]", "'seed 3, lr 0.001', 'seed 3, lr 0.1'", "twice"),
        (SEEDS, f"{SEEDS}\nvariant = 'dat'", "variant", "got 'dat'; expected one of its"),
        (WIDTH, "widht = 4.0", "parameters.widht", "unknown key; did you mean 'width'?"),
        (WIDTH, f"{WIDTH}\nseed = 1", "parameters.seed", "unknown key; put seeds above"),
        (WIDTH, "", "parameters.width", "missing"),
        ("300", "2.5", "parameters.block_size", "got 2.5; expected a valid integer"),
        (GRID, f"{GRID}\nlrr = [1.0]", "grid.lrr", "unknown key; did you mean 'lr'?"),
        (GRID, "lr = 0.1", "grid.lr", "got 0.1; expected a valid list"),
        (GRID, 'lr = [0.1, "x"]', "grid.lr", "got 'x'; expected a valid number"),
        (GRID, "lr = [1, 1.0]", "'seed 3, lr 1.0', 'seed 4, lr 1.0'", "this run appears twice"),
        (GRID, f"{GRID}\nwidth = [1.0]", "grid.width", "also in parameters; expected it in one"),
        (GRID, f"{GRID}\n[cases]\na = 3", "cases.a", "got 3; expected a valid dictionary"),
        (GRID, f"{GRID}\n[cases.a.parameters]\ngama = 1.0", "cases.a.parameters.gama", "unknown"),
        (GRID, f"{GRID}\n[cases.a.grid]\nwidth = [1.0, 'x']", "cases.a.grid.width", "got 'x'"),
        (GRID, f"{GRID}\n[quick]\nparam = {{}}", "quick.param", "unknown key; did you mean 'param"),
        (GRID, f"{GRID}\n[quick.parameters]\nwidht = 1.0", "quick: parameters.widht", "unknown"),
    ],
)  # fmt: skip
def test_one_problem_is_one_line(old, new, place, message):
    assert old in SMALL_DIGITS
    with pytest.raises(
        InvalidInputError, match=f"^experiment small: {place}: .*{re.escape(message)}"
    ):
        parse_experiment("small", SMALL_DIGITS.replace(old, new))


def test_all_problems_are_listed_each_once():
    text = SMALL_DIGITS.replace("title", "titel").replace(SEEDS, "seeds = [1, 2.5]\nfoo = 1")
    text = text.replace(WIDTH, "widht = 4.0").replace("[grid]", "[grid]\nwidth = ['x']")
    text += "[quick]\nparameters = { block_size = 1.5 }\n[cases.'a/b']\n"
    with pytest.raises(InvalidInputError) as refused:
        parse_experiment("x", text)
    first, *lines = str(refused.value).splitlines()
    assert first == "experiment x has 8 problems:"
    places = "title seeds.1 titel foo cases parameters.widht grid.width quick"
    assert [line.strip().partition(": ")[0] for line in lines] == places.split()
    cases = "".join(f"[cases.c{number}]\n" for number in range(5))
    places = ", ".join(f"cases.c{number}.parameters.width" for number in range(3))
    with pytest.raises(InvalidInputError, match=f"^experiment x: {places} and 2 more: missing$"):
        parse_experiment("x", SMALL_DIGITS.replace(WIDTH, "") + cases)


def test_too_large_a_plan():
    values = ", ".join(map(str, range(1, 1001)))
    grid = f"lr = [{values}]\nwidth = [{values}]\ngamma = [{values}]"
    text = SMALL_DIGITS.replace(GRID, grid).replace(WIDTH, "").replace("gamma = 1.0", "")
    with pytest.raises(InvalidInputError, match="2000000000 runs; .* most 100000$"):
        parse_experiment("x", text)


NOT_TOML = ["family = ", "a = 1\na = 2", "[" * 5000, "\0", f"a = {'9' * 5000}"]
NOT_NAMES = ["runs", "...", ".hidden", "", "a\nb"]
NOT_CASES = ["x[/red]", "a\\u001b[31m", "", "$x", "../up"]  # they mean something elsewhere
NOT_SETTINGS = ["gamma", "gamma=", "=3", "gamma=wide", f"g={'9' * 5000}"]


def test_what_cannot_be_read_at_all():
    def with_case(case):
        return parse_experiment("x", SMALL_DIGITS + f'[cases."{case}"]\nparameters={{}}')

    for read, wrong, message in (
        (partial(parse_experiment, "bad"), NOT_TOML, "^experiment bad is not valid TOML"),
        (lambda name: parse_experiment(name, SMALL_DIGITS), NOT_NAMES, "name.*other than 'runs'"),
        (with_case, NOT_CASES, "x: cases: got .*expected a name of letters"),
        (lambda text: parse_changes([text]), NOT_SETTINGS, "is not a setting: .*name=value"),
        (load_experiment, ["fgi1"], r"no experiment 'fgi1'; did you mean 'fig1'\?"),
        (load_experiment, ["xyz"], "'xyz'; known: digits, fig1.* ends in .toml"),
    ):
        for text in wrong:
            with pytest.raises(InvalidInputError, match=message):
                read(text)


VALUES = ["1", "-1", "0.5", "inf", "nan", '"x"', '""', "true", "2026-01-01", "[]", "{}", "[1, []]"]
VALUES += ["[[0.5], nan]", "{ lr = 1 }", "[{ a = true }, 1]", "{ seeds = [{}] }", '["x", inf]']
KEYS = ["seeds", "grid", "width", "lr", "quick", "cases", "variant", "parameters"]


@given(
    place=st.sampled_from(["", "parameters", "grid", "cases", "cases.a", "quick", "q"]),
    key=st.text("abdefgilrstwy_", min_size=1, max_size=6) | st.sampled_from(KEYS),
    value=st.sampled_from(VALUES),
)
def test_an_experiment_or_an_error_in_words(place, key, value):
    line, message = f"{key} = {value}\n", ""
    if f"[{place}]" in SMALL_DIGITS:
        text = SMALL_DIGITS.replace(f"[{place}]\n", f"[{place}]\n{line}")
    else:
        text = f"{SMALL_DIGITS}[{place}]\n{line}" if place else line + SMALL_DIGITS
    try:
        assert parse_experiment("any", text).runs()
    except InvalidInputError as error:
        message = str(error)
    assert not message or message.startswith("experiment any")
    assert "pydantic" not in message
    assert all(": " in line or line.endswith("problems:") for line in message.splitlines())


# Files of the user's own


def test_a_file_is_read_by_its_path(tmp_path, small, monkeypatch):
    path = tmp_path / "a b (ü).toml"
    path.write_text(SMALL_DIGITS, "utf-8")
    experiment = load_experiment(str(path))
    assert experiment.name == experiment.label == "a b (ü)"
    assert experiment.runs() == small.runs()
    assert named_experiments(str(path)) == [str(path)]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_experiment("~/a b (ü).toml") == experiment
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fig1.toml").write_text(SMALL_DIGITS)
    assert named_experiments("fig1.toml") == ["fig1.toml"]
    assert load_experiment("fig1.toml").family == "digits"
    assert load_experiment("fig1").family == "toy shift"


def test_files_that_cannot_be_read(tmp_path):
    contents = {"bytes": b"title = '\xff'", "large": b"#" * (LARGEST_FILE + 1)}
    for name, content in contents.items():
        (tmp_path / f"{name}.toml").write_bytes(content)
    (tmp_path / "folder.toml").mkdir()
    for name, message in {
        "none": "file .*none.toml cannot be read: No such file",
        "folder": "folder.toml is not a file",
        "bytes": "bytes.toml is not text in UTF-8",
        "large": "large.toml is too large",
    }.items():
        with pytest.raises(InvalidInputError, match=message):
            load_experiment(str(tmp_path / f"{name}.toml"))


# The page about them


@pytest.mark.usefixtures("not_saved")
def test_the_example_of_the_docs_runs(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
    experiment = parse_experiment("my_digits", text)
    planned = experiment.planned_runs()
    assert [(run.labels["case"], run.config.seed, run.config.lr) for run in planned] == [
        ("narrow", 0, 0.001), ("narrow", 0, 0.1), ("narrow", 1, 0.001), ("narrow", 1, 0.1),
        ("wide", 0, 0.01),
    ]  # fmt: skip
    quick = experiment.small()
    assert len(quick.runs()) == 3
    wide = quick.model_copy(update={"cases": {"wide": quick.cases["wide"]}})
    assert set(run_experiment(wide, tmp_path).table["case"]) == {"wide"}


def parameter_text(name, field):
    """Its name, the values to choose from, and the one that it has by itself."""
    kinds = [field.annotation, *get_args(field.annotation)]
    (choices,) = [get_args(kind) for kind in kinds if get_origin(kind) is Literal] or [()]
    if name == "method":
        choices = recipes()
    told = f"`{name}`" + (f" ({' / '.join(map(json.dumps, choices))})" if choices else "")
    if field.is_required():
        return told
    return f"{told} = {json.dumps(field.get_default(call_default_factory=True))}"


def family_list():
    """One item for each set of parameters; what all networks share is an item of its own."""
    shared = {name: parameter_text(name, field) for name, field in NetworkRun.model_fields.items()}
    items = {", ".join(told for name, told in shared.items() if name != "seed"): ["all networks"]}
    for name, family in families().items():
        of_networks = issubclass(family.config, NetworkRun)
        told = {key: parameter_text(key, each) for key, each in family.config.model_fields.items()}
        own = [text for key, text in told.items() if not of_networks or text != shared.get(key)]
        own = [text for text in own if text != told["seed"]]
        items.setdefault(", ".join(own), []).append(f"`{name}`")
    return "".join(f"* {', '.join(names)}: {told}\n" for told, names in items.items())


def test_the_docs_have_every_family_with_its_parameters():
    text = DOCS.read_text()
    _, _, rest = text.partition("<!-- families -->\n")
    assert rest.partition("<!-- end of families -->")[0] == family_list()


def test_a_file_does_not_choose_code_to_run():
    for place, lines in {
        "parameters": "",
        "grid": "[grid]\n",
        "cases.a.parameters": "[cases.a.parameters]\n",
        "quick.parameters": "[quick.parameters]\n",
        "cases.a.quick.parameters": "[cases.a.quick.parameters]\n",
    }.items():
        code, file = '"os:getcwd"', '"weights.pth"'
        if place == "grid":
            code, file = f'["resnet18", {code}]', f'["resnet18", {file}]'
        text = f"{CORE50}{lines}backbone = "
        message = rf"{place}\.backbone: 'os:getcwd' is code to run"
        with pytest.raises(InvalidInputError, match=message):
            parse_experiment("handed", text + code)
        assert parse_experiment("handed", text + file).runs()


def test_a_file_chooses_no_import(tmp_path, monkeypatch):
    marker = tmp_path / "imported"
    (tmp_path / "handed_code.py").write_text(f"open({str(marker)!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    named = CORE50.replace('"vanilla"', '"handed_code:Mine"')
    swept = CORE50.replace('method = "vanilla"\n', "") + '[grid]\nmethod = ["handed_code:Mine"]'
    cases = CORE50 + '[cases.a.quick.parameters]\nmethod = "handed_code:Mine"'
    for text in (named, swept, cases):
        with pytest.raises(InvalidInputError, match="--method handed_code:Mine"):
            parse_experiment("handed", text)
    assert not marker.exists()
