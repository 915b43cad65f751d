// Run by Node: what @grpc/grpc-js sees of the router at argv[2], with the protos at argv[3], as JSON.
"use strict";

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [address, protos] = process.argv.slice(2);
const definition = loader.loadSync("inference/grpc_service.proto", {
  includeDirs: [protos],
  keepCase: true,
  longs: Number,
});
const { GRPCInferenceService } = grpc.loadPackageDefinition(definition).inference;
const client = new GRPCInferenceService(address, grpc.credentials.createInsecure());

const row = Buffer.from(new Float32Array([1, 2, 3, 4]).buffer);

function request(id, model = "digits") {
  return {
    model_name: model,
    id,
    inputs: [{ name: "x", datatype: "FP32", shape: [1, 4] }],
    raw_input_contents: [row],
  };
}

function value(response) {
  return response.raw_output_contents[0].readFloatLE(0);
}

function call(method, message, metadata = new grpc.Metadata(), options = {}) {
  return new Promise((resolve) => {
    client[method](message, metadata, options, (error, response) =>
      resolve(error ? { code: error.code, details: error.details } : response),
    );
  });
}

function stream(requests) {
  return new Promise((resolve, reject) => {
    const found = [];
    const call = client.ModelStreamInfer();
    call.on("data", (answer) => {
      const response = answer.infer_response;
      const final = response.parameters.triton_final_response.bool_param;
      const output = answer.error_message || value(response);
      found.push([response.id, output, final]);
    });
    call.on("error", reject);
    call.on("end", () => resolve(found));
    requests.forEach((one) => call.write(one));
    call.end();
  });
}

async function main() {
  const answer = await call("ModelInfer", request("mine"));
  const zipped = await call("ModelInfer", request("zipped"), new grpc.Metadata(), {
    "grpc.default_compression_algorithm": 2,
  });
  const seen = {
    id: answer.id,
    output: value(answer),
    zipped: value(zipped),
    energy_j: answer.parameters.energy_j.double_param,
    unknown: await call("ModelInfer", request("lost", "nothing")),
    late: await call("ModelInfer", request("late", "digits"), new grpc.Metadata(), {
      deadline: Date.now() - 1,
    }),
    index: (await call("RepositoryIndex", {})).models.map(({ name, state }) => [name, state]),
    stream: await stream([request("a"), request("b", "nothing"), request("c")]),
  };
  process.stdout.write(JSON.stringify(seen));
  client.close();
}

main();
