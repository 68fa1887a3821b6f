# ZenithTune with its packages for Kubernetes and calibration, without torch: `make image`, then `docker run --rm zenithtune doctor --self`.
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY calibration ./calibration
COPY kubernetes ./kubernetes
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist . ./calibration ./kubernetes

FROM python:3.13-slim
COPY --from=build /dist /dist
RUN pip install --no-cache-dir /dist/*.whl && rm -r /dist
RUN useradd --create-home --uid 1000 zenith && install -d -o zenith /work
USER zenith
WORKDIR /work
ENTRYPOINT ["zenithtune"]
