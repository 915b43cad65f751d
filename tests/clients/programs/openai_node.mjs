// OpenAI's client for Node: whole, streamed, tools.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "5" }];
const whole = await client.chat.completions.create({ model: "digits", messages, max_tokens: 3 });
assert.equal(whole.choices[0].message.content, " 6 7 8");
assert.ok(whole.usage.cinquefoil.energy_j > 0);
let text = "";
for await (const piece of await client.chat.completions.create({ model: "digits", messages, max_tokens: 3, stream: true })) {
  text += piece.choices[0]?.delta?.content ?? "";
}
assert.equal(text, " 6 7 8");
const tool = { type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } };
const called = await client.chat.completions.create({ model: "digits", messages, tools: [tool] });
assert.equal(called.choices[0].message.tool_calls[0].function.name, "weather");
