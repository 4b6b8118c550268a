# An image with only the service and the extras of EXTRAS. No compiler, no torch, not root.
# How to run it in production: deploy/README.md.
#
#   docker build -t keymatch .     # or, for two architectures: docker buildx build --platform
#                                  # linux/amd64,linux/arm64 -t REGISTRY/keymatch:0.1.0 --push .
#                                  # for shards: --build-arg EXTRAS=cpu,postgres,jwt,objects,cluster
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 \
#     -v ./bundle:/bundle:ro -v keymatch-bundles:/bundles -v keymatch-state:/state \
#     -v ./api-keys:/run/secrets/api-keys:ro -e KEYMATCH_API_KEYS=/run/secrets/api-keys keymatch
#
# A container listens on every address, so the service refuses to start without API keys. If only you
# can reach the published port, override the command and add --allow-anonymous, as docker-compose.yml
# does.

# To pin it: --build-arg PYTHON=3.11-slim-bookworm@sha256:DIGEST (deploy/README.md).
ARG PYTHON=3.11-slim-bookworm

FROM docker.io/library/python:${PYTHON} AS build
ARG EXTRAS=cpu,postgres,jwt,objects
WORKDIR /source
# The virtual environment gets no pip of its own: this build stage's pip installs into it.
RUN python -m venv --without-pip /opt/keymatch
# Install the dependencies with empty packages first, so that Docker caches them. After a change of
# the source, only the source is installed again.
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY service/start.py service/
RUN mkdir training export && touch service/__init__.py training/__init__.py \
      export/__init__.py \
    && python -m pip --python /opt/keymatch/bin/python install --no-cache-dir ".[${EXTRAS}]"
COPY service service
COPY training training
COPY export export
RUN python -m pip --python /opt/keymatch/bin/python install --no-cache-dir --no-deps \
      --force-reinstall .

FROM docker.io/library/python:${PYTHON}
LABEL org.opencontainers.image.title="keymatch" \
      org.opencontainers.image.description="Low-latency query-to-keyword matching" \
      org.opencontainers.image.licenses="Apache-2.0"
# PYTHONSAFEPATH: `python` in this container imports nothing from the working directory.
# KEYMATCH_CACHE: copies of bundles from object stores, in the volume that the service writes to.
ENV PATH=/opt/keymatch/bin:$PATH \
    KEYMATCH_CACHE=/bundles/.cache \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /opt/keymatch /opt/keymatch
# Without these folders the volumes would belong to root, and the service could not write to them.
RUN install -d -o 10001 -g 10001 /bundles /state
# Numeric, because Kubernetes can check `runAsNonRoot` only for numeric users.
USER 10001:10001
WORKDIR /
VOLUME ["/bundles", "/state"]
EXPOSE 8000
# The probe asks the service in this container, so it ignores the environment's proxy settings.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", \
  "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["keymatch"]
CMD ["serve", "--bundle", "/bundle", "--bundles", "/bundles", "--state", "/state", \
  "--host", "0.0.0.0", "--port", "8000"]
