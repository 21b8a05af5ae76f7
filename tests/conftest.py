"""Fixtures that several test files share. Importing this loads neither torch nor a model."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from streaming import models

# Of the processes under test too. Torch's threads wait for each other at every product: where two processes share two
# cores, one that got no core holds the other up, and a model answers at a quarter of the speed that it has with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no failure.
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


@pytest.fixture(scope="session")
def starter_folder() -> Path:
    """The starter model's folder, fetched and converted into the user's cache at the first use."""
    return models.prepare("starter", cache_dir=None, progress=print).path


@pytest.fixture(scope="session")
def transformers_server(starter_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The starter model in a server that we did not write: its address, with /v1."""
    from tests.serving import transformers_serve

    with transformers_serve(starter_folder, tmp_path_factory.mktemp("server") / "log") as url:
        yield url
