import pytest

from equivariant_transformers import cli


@pytest.fixture
def run(capsys):
    """Runs a command, expects an exit code, and returns what was printed on stdout and stderr."""

    def command(*arguments, code=0):
        capsys.readouterr()
        assert cli.main(list(map(str, arguments))) == code
        return capsys.readouterr()

    return command
