"""Run inside an image, with cyclonedx-bom in the folder named first: what the image is made of, as CycloneDX 1.6 JSON.

Python packages come from the environment, Debian's from dpkg, without their licences.
"""

import json
import platform
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

PYTHON = "/opt/gpuspawner/bin/python"


def of_python() -> str:
    """The list of the environment's packages. Its Python is asked in a process that knows nothing of our folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "python.json")
        sys.argv = ["cyclonedx-py", "environment", "--output-reproducible", "-o", str(out), PYTHON]
        try:
            runpy.run_module("cyclonedx_py", run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        return out.read_text()


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    bom = Bom.from_json(json.loads(of_python()))
    distribution = platform.freedesktop_os_release()["ID"]
    form = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        status, name, version, architecture = line.split("\t")
        if status.startswith("ii"):
            url = PackageURL("deb", distribution, name, version, {"arch": architecture})
            found = Component(name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=str(url))
            bom.components.add(found)
    print(JsonV1Dot6(bom).output_as_string(indent=1))


main()
