# The operator's image. `hack/image/build` builds it with whatever this machine has; by hand:
#
#   docker build -t semaphore-operator .
#   docker run --rm --read-only --cap-drop ALL semaphore-operator --help

# Any Debian-like image with Python 3.11 or newer and its venv module. Both stages need the same one: the environment
# that the first one makes points to the base's interpreter.
ARG BASE=docker.io/library/python:3.12-slim

FROM ${BASE} AS build
# Where pip finds packages and whom it trusts, where that is not the public registry. They end with this stage.
ARG PIP_INDEX_URL=
ARG PIP_CERT=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
# Two environments: pip stays in the first, only the second goes into the image.
RUN python3 -m venv tools && python3 -m venv --without-pip /opt/semaphore-operator
COPY pyproject.toml README.md LICENSE ./
COPY client client
COPY operator operator
RUN tools/bin/pip wheel --quiet --no-deps --wheel-dir dist . \
 && tools/bin/pip --python /opt/semaphore-operator/bin/python install --quiet --no-compile "$(echo dist/*.whl)[operator]"
# Bytecode last, of what is left, and such as no file's time makes stale.
COPY hack/image/trim.py ./
RUN /opt/semaphore-operator/bin/python -B trim.py \
 && /opt/semaphore-operator/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/semaphore-operator/lib \
 && /opt/semaphore-operator/bin/semaphore-operator --version

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="semaphore-operator" \
      org.opencontainers.image.description="Brings DistributedSemaphore resources to Redis, and what Redis knows back" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/semaphore-operator /opt/semaphore-operator
# Nothing is written at run time, so that the root may be read-only: bytecode is in the image already, logs go to
# standard error. The user, whichever a cluster picks, is in no /etc/passwd; kopf asks for a name, so it gets one here.
ENV PATH=/opt/semaphore-operator/bin:${PATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/ USER=semaphore-operator
WORKDIR /
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["semaphore-operator"]
