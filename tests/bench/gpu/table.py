"""Prints the sections' results as one table and writes them to results.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(out: Path) -> None:
    rows = []
    for line in (out / "lines.jsonl").read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # something else that a library printed
    facts = json.loads((out / "card.json").read_text()) if (out / "card.json").is_file() else None
    (out / "results.json").write_text(json.dumps({"machine": facts, "sections": rows}, indent=2) + "\n")
    print(f"card: {facts['card'] if facts else 'unknown'}")
    for row in rows:
        figures = ", ".join(f"{name} {value}" for name, value in row.get("figures", {}).items())
        print(f"{row['section']:<16} {row['status']:<10} {figures or row.get('reason', '')}")
    print(f"written: {out / 'results.json'}")


main(Path(sys.argv[1]))
