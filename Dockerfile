# hotlap in a container. The base image is an argument: it brings Python, and may bring torch.
#
#   docker build -t hotlap .
#   docker build -t hotlap --build-arg BASE=IMAGE --build-arg TORCH=image .
#
# The second form takes an image that has torch, such as NVIDIA's for PyTorch, and keeps that torch.
# docs/containers.md says how to start it.
ARG BASE=python:3.12-slim
FROM ${BASE}

# An ARG before FROM is not known behind it.
ARG TORCH=own
ARG UID=1000

# make runs the install step; g++ is what torch.compile calls on a CPU. Debian's own Python comes
# without ensurepip, which a virtual environment needs.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && (python3 -m ensurepip --version || apt-get install --yes --no-install-recommends python3-venv) \
    && rm -rf /var/lib/apt/lists/*

# An image may have a user of that number already.
RUN getent passwd ${UID} || useradd --create-home --uid ${UID} hotlap
RUN mkdir /hotlap && chown ${UID} /hotlap
USER ${UID}
WORKDIR /hotlap
# A volume that is mounted there belongs to the same user.
RUN mkdir /tmp/cache

COPY --chown=${UID} Makefile pyproject.toml constraints.txt README.md LICENSE ./
COPY --chown=${UID} src src
COPY --chown=${UID} examples examples
RUN make .venv TORCH=${TORCH} EXTRAS=demo

ENV PATH=/hotlap/.venv/bin:${PATH}
# What is kept in between (ceilings, compiled kernels) may go to a volume.
ENV XDG_CACHE_HOME=/tmp/cache
ENTRYPOINT ["hotlap"]
CMD ["env"]
