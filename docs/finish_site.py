"""What is done to the built pages.

Search shows words instead of LaTeX and finds what people call things, copies have no prompts, and
short options are not cut in two.
"""

import html
import json
import re
from pathlib import Path

# Commands whose sign says more than their name; the others become words, as one would type them.
NAMES = ["nabla", "sum", "sqrt", "infty", "square", "cdot", "cdots", "circ", "pm", "le", "ge"]
NAMES += ["ne", "approx", "in", "to", "leftarrow"]
SIGNS = dict(zip(NAMES, "∇Σ√∞□·…∘±≤≥≠≈∈→←", strict=True)) | {
    **dict.fromkeys(["lVert", "rVert", "|"], "‖"),
    **dict.fromkeys(["lvert", "rvert"], "|"),
}
UNSEEN = {"text", "operatorname", "mathcal", "mathbb", "bar", "overline", "left", "right"}
UNSEEN |= {"big", "Big", "bigl", "bigr", "Bigl", "Bigr", "quad", "qquad", ",", ";", "!", " "}
RAISED = str.maketrans("0123456789+-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻")

FORMULA = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
ROW = re.compile(
    r"^\| ((?:Eq|Lemma|Theorem|Proposition|A)[ .][^|]+) \| ([^|]+) \| ([^|]+) "
    r"\| \[[^]]+\]\(([\w/]*)(?:\.md)?(#[^)]+)\) \|$",
    re.MULTILINE,
)
# As in the index of a book: what people look for, where it is, and what they find there.
LOOKED_FOR = {
    "Choose gamma": (
        "continual.html#how-gamma-is-chosen",
        'gamma="auto" chooses the ridge; a correction of a network is tried on held-out rows.',
    ),
    "Concept drift": (
        "training.html#drift",
        "If the target changes, follow a batch model of recent rows; what the diagnosis says.",
    ),
    "Continual learning": (
        "continual.html",
        "Networks that learn task after task: corrected targets, and a lab of methods.",
    ),
    "Incremental learning": (
        "partial_fit.html",
        "Which models keep what they learned when new rows come, in a table that you can run.",
    ),
    "New classes": (
        "tangent.html#new-classes",
        "A learner can be widened by outputs for classes that come later.",
    ),
    "partial_fit": (
        "partial_fit.html",
        "Does it forget? Models of scikit-learn and river, shuffled and class by class.",
    ),
    "Shuffle": (
        "limits.html#when-the-order-does-no-harm",
        "If you can choose the order of the rows, choose a random one. Corrected rows keep theirs.",
    ),
    "Unlearn user data": (
        "tutorials/unlearning.html",
        "Machine unlearning: forget takes samples back as if they had never been learned.",
    ),
}
INLINE = re.compile(r"<code>[^<]*</code>")
OPTION = re.compile(r"(?<![\w-])--?[a-z][\w-]{0,22}(?![\w-])")
CODE = re.compile(r'<div class="highlight">(<pre><span></span><code>)(.*?)(?=</code></pre>)', re.S)


def in_words(formula: str) -> str:
    """A LaTeX formula as a line of text: a fraction as a/b, powers raised, indices after _."""
    text = re.sub(r"\\begin\{\w+\}", "(", formula)
    text = re.sub(r"\\end\{\w+\}", ")", text).replace("\\\\", ";").replace("&", ",")
    part = r"(\{(?:[^{}]|\{[^{}]*\})*\}|\\[A-Za-z]+|\w)"
    text = re.sub(
        rf"\\t?frac\s*{part}\s*{part}", lambda f: f"{_grouped(f[1])}/{_grouped(f[2])}", text
    )
    text = re.sub(r"\^\{?([0-9+-]+)\}?", lambda power: power[1].translate(RAISED), text)
    text = re.sub(r"\^\{?\\top\}?", "ᵀ", text)

    text = re.sub(r"\\([A-Za-z]+|.)", _spoken, text)
    text = re.sub(r"\s+", " ", text.replace("{", "").replace("}", ""))
    return re.sub(r"(?<=[(\[√‖_^/]) | (?=[)\]_^,/])", "", text).strip()


def _spoken(command: re.Match[str]) -> str:
    name = command[1]
    return " " if name in UNSEEN else SIGNS.get(name, f" {name} ")


def _grouped(part: str) -> str:
    return f"({part})" if re.search("[+-]", part) else part


def with_words(text: str) -> str:
    """HTML of the search index, its formulas in words."""

    def words(formula: re.Match[str]) -> str:
        return html.escape(in_words(html.unescape(formula[1] or formula[2])), quote=False)

    return FORMULA.sub(words, text)


def entries(theory: str) -> list[dict]:
    """One entry of the search index for each row of the theory page's table of the paper."""
    return [
        {
            "location": f"{page or 'theory'}.html{section}",
            "level": 2,
            "title": place,
            "text": re.sub(r"\$([^$]+)\$", r"\(\1\)", f"<p>{what}: {code}</p>").replace("`", ""),
            "path": ["Theory", "The theory"],
            "tags": [],
        }
        for place, what, code, page, section in ROW.findall(theory)
    ]


def looked_for() -> list[dict]:
    """One entry of the search index for each of the things that people look for."""
    return [
        {
            "location": location,
            "level": 1,
            "title": title,
            "text": f"<p>{text}</p>",
            "path": [title],  # the search ranks by it as well
            "tags": [],
        }
        for title, (location, text) in LOOKED_FOR.items()
    ]


def code_alone(block: str) -> str:
    """What to copy from a highlighted session: its lines of code, without prompts and outputs."""
    lines = (html.unescape(re.sub(r"<[^>]+>", "", line)) for line in _lines_of_code(block))
    return "\n".join(lines)


def _lines_of_code(block: str) -> list[str]:
    prompt = re.compile(r'^<span class="gp">[^<]*</span>')
    return [prompt.sub("", line) for line in block.splitlines() if prompt.match(line)]


def with_copies(page: str) -> str:
    """A page whose copy buttons take code only: the theme copies `data-copy` if there is one."""

    def marked(block: re.Match[str]) -> str:
        if '<span class="gp">' not in block[2]:
            return block[0]
        copied = html.escape(code_alone(block[2])).replace("\n", "&#10;")
        return f'<div class="highlight" data-copy="{copied}">{block[1]}{block[2]}'

    return CODE.sub(marked, page)


def with_whole_options(page: str) -> str:
    """A page on which a line does not end between the hyphens of an option."""

    def whole(code: re.Match[str]) -> str:
        return OPTION.sub(r'<span class="word">\g<0></span>', code[0])

    return INLINE.sub(whole, page)


def finish(site: Path, theory: str) -> None:
    """Changes the pages and the search index in place."""
    for page in site.rglob("*.html"):
        page.write_text(with_whole_options(with_copies(page.read_text())))
    path = site / "search.json"
    index = json.loads(path.read_text())
    index["items"] += entries(theory) + looked_for()
    for item in index["items"]:
        item["title"], item["text"] = with_words(item["title"]), with_words(item["text"])
    path.write_text(json.dumps(index))
