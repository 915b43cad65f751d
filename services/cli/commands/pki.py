"""`cinquefoil pki init|issue`."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, group

app = group(
    "pki", "Makes certificates for trying mutual TLS; for production see docs/identities.md."
)

Folder = Annotated[Path, typer.Option("--folder", file_okay=False, help="Of the authority.")]
Days = Annotated[float, typer.Option(min=0.001, max=825, help="How long certificates are valid.")]
TrustDomain = Annotated[str, typer.Option(help="SPIFFE trust domain of the identities.")]
PKI = Path("out/pki")


@app.command()
def init(
    config: Config = DEPLOYMENT,
    folder: Folder = PKI,
    days: Days = 90,
    trust_domain: TrustDomain = "cinquefoil",
) -> None:
    """Make an authority, and a certificate for every service and node of a deployment.

    Prints the sections `tls` and `access` that use them. Run it again to renew the certificates:
    services read the new ones without a restart.
    """
    from services.kit.config.loader import load
    from services.local.pki import Authority, identities, settings

    deployment = load(config)
    folder = folder.absolute()
    new = not (folder / "ca.key").exists()
    authority = Authority.made(folder, trust_domain) if new else Authority(folder, trust_domain)
    for identity in identities(deployment):
        written = authority.issue(identity, days)
        typer.echo(f"{identity.spiffe_id(trust_domain):40} {written}", err=True)
    typer.echo(settings(folder, trust_domain))


@app.command()
def issue(  # noqa: PLR0913, PLR0917 - one argument per option of the command
    role: Annotated[str, typer.Argument(help="planner, agent, client, operator, ...")],
    name: Annotated[str, typer.Argument(help="Of its bearer; an agent's is its node's.")] = "",
    host: Annotated[
        list[str] | None, typer.Option(help="DNS name or IP address it is dialled by.")
    ] = None,
    to: Annotated[
        str, typer.Option(help="Folder below the authority's. Empty: the role's and the name's.")
    ] = "",
    folder: Folder = PKI,
    days: Days = 90,
    trust_domain: TrustDomain = "cinquefoil",
) -> None:
    """Issue one certificate, for example `pki issue client batch-jobs`.

    That of a second router, on another machine: `pki issue router --host 10.0.0.9 --to router-2`.
    """
    import re
    from typing import get_args

    from services.kit.config import Role
    from services.local.pki import Authority, Identity

    if role not in get_args(Role):
        raise typer.BadParameter(f"must be one of {', '.join(get_args(Role))}", param_hint="ROLE")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}|", name):
        raise typer.BadParameter("must be letters, digits, '.', '_' and '-'", param_hint="NAME")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}|", to):
        raise typer.BadParameter("must be letters, digits, '.', '_' and '-'", param_hint="--to")
    identity = Identity(role, name, tuple(host or ()), place=to)
    written = Authority(folder.absolute(), trust_domain).issue(identity, days)
    typer.echo(f"{identity.spiffe_id(trust_domain)} {written}")
