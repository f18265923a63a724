"""Packaging: everything is read from settings.ini, which nbdev reads too."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
config = ConfigParser(delimiters=["="], interpolation=None)
config.read(here / "settings.ini", encoding="utf-8")
settings = config["DEFAULT"]

lab = settings["lab_requirements"].split()
dev = settings["dev_requirements"].split()
site = settings["site_requirements"].split()
real_weights = settings["real_weights_requirements"].split()
onnx = settings["onnx_requirements"].split()

carried = {"transformer_course.results": ("experiments/results", "*.json"),     # records of long runs, which lessons show
           "transformer_course.timings": ("benchmarks/results", "*.json"),      # and of benchmarks
           "transformer_course.notebooks": ("nbs", "**/*.ipynb")}               # what `transformer-course start` copies

setup(
    name=settings["lib_name"],
    version=settings["version"],
    description=settings["description"],
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    keywords=settings["keywords"],
    author=settings["author"],
    author_email=settings["author_email"],
    url=settings["git_url"],
    license="Apache-2.0",
    license_files=["LICENSE", "LICENSE-PROSE"],
    packages=[*find_packages(include=["transformer_course", "transformer_course.*"]), *carried],
    package_dir={package: folder for package, (folder, pattern) in carried.items()},
    package_data={package: [pattern] for package, (folder, pattern) in carried.items()} | {"transformer_course": ["py.typed"]},
    include_package_data=True,
    python_requires=">=" + settings["min_python"],
    install_requires=settings["requirements"].split(),
    extras_require={"lab": lab, "dev": dev, "site": site, "real-weights": real_weights, "onnx": onnx},
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Natural Language :: English",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Operating System :: OS Independent",
    ],
    entry_points={
        "console_scripts": settings["console_scripts"].split(),
        "nbdev": ["transformer_course=transformer_course._modidx:d"],
    },
    zip_safe=False,
)
