#!/usr/bin/env bash
# Builds a release and tries it as a stranger would. Called by `make release-check`.
#
#     release_check.sh TOOLS PYTHON
#
# TOOLS is the environment with the tools of the extra [release], PYTHON makes new ones. The built
# files are left in build/release/dist, with the recipe for conda-forge beside them.
set -euo pipefail
tools=$1 python=$2 root=$PWD work=$PWD/build/release
export PIP_CONSTRAINT=$root/constraints.txt

rm -rf "$work" && mkdir -p "$work/dist"
echo "== build"
"$tools/bin/python" -m build --outdir "$work/dist" . > "$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
wheel=$(echo "$work"/dist/*.whl) archive=$(echo "$work"/dist/*.tar.gz)
version=$(basename "$archive" .tar.gz) version=${version#retarget-}

echo "== metadata and contents"
"$tools/bin/twine" check --strict "$wheel" "$archive"
"$tools/bin/check-wheel-contents" "$wheel"
"$tools/bin/pyroma" --min 10 "$archive"
for name in CITATION.cff CHANGELOG.md; do
  grep -q -- "$version" "$name" || { echo "$name does not name version $version"; exit 1; }
done

echo "== workflows, forms, citation"
schema() { "$tools/bin/check-jsonschema" --builtin-schema "$@"; }
schema vendor.github-workflows .github/workflows/*.yml
schema custom.github-workflows-require-timeout .github/workflows/*.yml
schema vendor.dependabot .github/dependabot.yml
schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
schema vendor.citation-file-format CITATION.cff
"$tools/bin/zizmor" --offline .github

for file in "$wheel" "$archive"; do
  echo "== retarget diagnose, installed from $(basename "$file") in an empty environment"
  rm -rf "$work/empty" "$work/folder" && "$python" -m venv "$work/empty" && mkdir "$work/folder"
  "$work/empty/bin/python" -m pip install --quiet "$file"
  (cd "$work/folder" && "$work/empty/bin/retarget" diagnose --out report > said.txt)
  test -s "$work/folder/report/report.html"
  grep -m1 "batch model" "$work/folder/said.txt"
done
rm -rf "$work/empty" "$work/folder"

echo "== the tests of the unpacked archive"
tar -xzf "$archive" -C "$work"
(cd "$work/retarget-$version" && PYTHONPATH=src "$root/.venv/bin/python" -m pytest -q -m "not slow" -n auto --dist worksteal)

sum=$(sha256sum "$archive" | cut -d' ' -f1)
sed "s/@VERSION@/$version/; s/@SHA256@/$sum/" packaging/recipe.yaml > "$work/recipe.yaml"
echo "== retarget $version can be published: $work/dist; the recipe for conda-forge is $work/recipe.yaml"
