// The AI SDK: text, streams, tools, objects.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "cinquefoil",
  baseURL: process.env.BASE_URL,
  supportsStructuredOutputs: true,
});
const model = provider("digits");
const how = { model, maxRetries: 0, prompt: "5", maxOutputTokens: 3 };
assert.equal((await generateText(how)).text, " 6 7 8");
let text = "";
for await (const piece of streamText(how).textStream) text += piece;
assert.equal(text, " 6 7 8");
const weather = tool({ description: "Weather", inputSchema: z.object({ city: z.string() }) });
const called = await generateText({ ...how, tools: { weather } });
assert.deepEqual(called.toolCalls[0].input, { city: "a" });
const streamed = streamText({ ...how, tools: { weather } });
assert.equal((await streamed.toolCalls)[0].toolName, "weather");
const found = await generateObject({ model, maxRetries: 0, prompt: "Who?", schema: z.object({ age: z.number() }) });
assert.deepEqual(found.object, { age: 0.5 });
