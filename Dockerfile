# The online service alone: Python, `keymatch[cpu,postgres]`, nothing to build with, no torch, not root.
#
#   docker build -t keymatch .
#   docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 \
#     -v ./bundle:/bundle:ro -v keymatch-state:/state \
#     -v ./api-keys:/run/secrets/api-keys:ro -e KEYMATCH_API_KEYS=/run/secrets/api-keys keymatch
#
# A container listens on every address, so it refuses to start without API keys. To serve everybody
# behind a port that only you can reach, give the command again with --allow-anonymous, as
# docker-compose.yml does.
ARG PYTHON=3.11-slim-bookworm

FROM docker.io/library/python:${PYTHON} AS build
WORKDIR /source
# The environment has no pip of its own: what installs stays behind in this stage.
RUN python -m venv --without-pip /opt/keymatch
# Dependencies first, over empty packages, so that a change of the source installs only the source.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir service training export && touch service/__init__.py training/__init__.py \
      export/__init__.py \
    && python -m pip --python /opt/keymatch/bin/python install --no-cache-dir '.[cpu,postgres]'
COPY service service
COPY training training
COPY export export
RUN python -m pip --python /opt/keymatch/bin/python install --no-cache-dir --no-deps \
      --force-reinstall .

FROM docker.io/library/python:${PYTHON}
LABEL org.opencontainers.image.title="keymatch" \
      org.opencontainers.image.description="Low-latency query-to-keyword matching" \
      org.opencontainers.image.licenses="Apache-2.0"
# PYTHONSAFEPATH: `python -m service` must find the installed package, whatever the folder holds.
ENV PATH=/opt/keymatch/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1
COPY --from=build /opt/keymatch /opt/keymatch
RUN install -d -o 10001 -g 10001 /state
# A number, so that `runAsNonRoot` can be checked without reading /etc/passwd.
USER 10001:10001
WORKDIR /
VOLUME /state
EXPOSE 8000
# The probe is the service's own; no proxy of the environment stands between.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "-c", \
  "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["python", "-m", "service"]
CMD ["serve", "--bundle", "/bundle", "--state", "/state", "--host", "0.0.0.0", "--port", "8000"]
