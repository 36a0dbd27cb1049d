// openai-node.
import OpenAI from "openai";
import { z } from "zod";
import { zodResponseFormat } from "openai/helpers/zod";
import { BASE, KEY, MODEL, QUESTION, WEATHER, step, version } from "./steps.mjs";

await version("openai");
const client = new OpenAI({ baseURL: BASE, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];

await step("chat", async () => (await client.chat.completions.create({ model: MODEL, messages })).choices[0].message.content);

await step("stream", async () => {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model: MODEL, messages, stream: true }))
    text += chunk.choices[0]?.delta?.content ?? "";
  return text;
});

await step("tool loop", async () => {
  const tools = [WEATHER];
  const first = await client.chat.completions.create({ model: MODEL, messages, tools, tool_choice: "required", parallel_tool_calls: false });
  const call = first.choices[0].message.tool_calls[0];
  const told = { role: "tool", tool_call_id: call.id, content: "sunny" };
  const second = await client.chat.completions.create({ model: MODEL, messages: [...messages, first.choices[0].message, told], tools });
  return second.choices[0].finish_reason;
});

await step("typed output", async () => {
  const shape = z.object({ city: z.enum(["Rome", "Oslo"]), is_warm: z.boolean() });
  const answer = await client.chat.completions.parse({ model: MODEL, messages, response_format: zodResponseFormat(shape, "weather") });
  return answer.choices[0].message.parsed.city;
});

await step("embeddings", async () => (await client.embeddings.create({ model: MODEL, input: "Rome" })).data.length);

await step("responses", async () => (await client.responses.create({ model: MODEL, input: QUESTION })).output_text);
