// Vercel's AI SDK, by @ai-sdk/openai (its default is /v1/responses) and @ai-sdk/openai-compatible.
import { embed, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";
import { BASE, KEY, MODEL, QUESTION, step, version } from "./steps.mjs";

await version("ai");
const openai = createOpenAI({ baseURL: BASE, apiKey: KEY });
const compatible = createOpenAICompatible({ name: "hocket", baseURL: BASE, apiKey: KEY, supportsStructuredOutputs: true });
const options = { prompt: QUESTION, maxRetries: 0 };
const tools = { get_weather: tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.enum(["Rome", "Oslo"]) }),
  execute: async ({ city }) => `sunny in ${city}`,
}) };

await step("chat", async () => (await generateText({ ...options, model: compatible(MODEL) })).text);

await step("stream", async () => {
  let text = "";
  for await (const piece of streamText({ ...options, model: compatible(MODEL) }).textStream) text += piece;
  return text;
});

await step("tool loop", async () => {
  const steps = [], providerOptions = { openai: { parallelToolCalls: false } };
  for (const model of [compatible(MODEL), openai.chat(MODEL), openai(MODEL)]) {
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" });
    steps.push((await generateText({ ...options, model, tools, stopWhen: stepCountIs(2), prepareStep, providerOptions })).steps);
  }
  return steps.every((of) => of[0].toolResults.length > 0 && of.length === 2);
});

await step("typed output", async () => {
  const schema = z.object({ city: z.enum(["Rome", "Oslo"]), is_warm: z.boolean() });
  const output = Output.object({ schema });
  return (await generateText({ ...options, model: compatible(MODEL), output })).output.city;
});

await step("embeddings", async () => (await embed({ model: compatible.embeddingModel(MODEL), value: "Rome", maxRetries: 0 })).embedding.length);

await step("responses", async () => (await generateText({ ...options, model: openai(MODEL) })).text);
