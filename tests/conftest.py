"""Fixtures that several test files share. Importing this loads neither torch nor a model."""

from pathlib import Path

import pytest
from hypothesis import settings

from streaming import models

settings.register_profile("project", deadline=None)  # a busy machine is no failure
settings.load_profile("project")


@pytest.fixture(scope="session")
def starter_folder() -> Path:
    """The starter model's folder, fetched and converted into the user's cache at the first use."""
    return models.prepare("starter", cache_dir=None, progress=print).path
