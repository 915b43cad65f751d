"""`python -m services.cli`: the `cinquefoil` command."""

from services.cli.main import app

if __name__ == "__main__":
    app(prog_name="cinquefoil")
