"""Checks the built site's search: what people type leads to the page that answers it.

Chromium opens the front page, types each query into the search box and reads the first result.
"""

import json
from pathlib import Path

from in_chromium import reports

# What people type, and the page that should come first.
QUERIES = {
    "catastrophic forgetting": "partial_fit.html",
    "choose gamma": "continual.html",
    "concept drift": "training.html",
    "continual learning": "continual.html",
    "incremental learning": "partial_fit.html",
    "machine unlearning": "tutorials/unlearning.html",
    "new classes": "tangent.html",
    "partial_fit": "partial_fit.html",
    "shuffle": "limits.html",
    "unlearn user data": "tutorials/unlearning.html",
}

TRIES = 100  # looks at the results, a tenth of a second apart, before a query has found nothing

# The search box is in a shadow tree, and its results change some time after the query does.
SEARCH = """<!doctype html><body><iframe src="index.html" width="1280" height="900"></iframe>
<script>
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const wait = async (look) => {
  for (let i = 0; i < TRIES; i++) {
    const seen = look();
    if (seen) return seen;
    await pause(100);
  }
};
const frame = document.querySelector("iframe");
frame.onload = async () => {
  const inside = frame.contentDocument;
  const tree = () => [...inside.querySelectorAll("*")].find((one) => one.shadowRoot)?.shadowRoot;
  const button = await wait(() => inside.querySelector(".md-search__button"));
  const box = await wait(() => { button.click(); return tree()?.querySelector("input"); });
  const first = () => tree().querySelector("ol a")?.href;
  const type = async (query, changed) => {
    box.value = query;
    box.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
    return wait(changed);
  };
  for (const query of QUERIES) {
    await type("", () => !first());
    const result = await type(query, first);
    const report = { query, page: result ? new URL(result).pathname.slice(1) : "" };
    await fetch("/", { method: "POST", body: JSON.stringify(report) });
  }
};
</script>"""


def lost_queries(site: Path, queries: dict[str, str] = QUERIES) -> list[str]:
    """A sentence for each query whose first result is another page than it should be."""
    looking = SEARCH.replace("TRIES", str(TRIES)).replace("QUERIES", json.dumps(list(queries)))
    results = reports(site, looking, len(queries))
    return [
        f"search for {result['query']!r}: {result['page'] or 'nothing'} comes first; expected "
        f"{queries[result['query']]}."
        for result in results
        if result["page"] != queries[result["query"]]
    ]
