// What every client's script does: as steps.py.
import { readFile } from "node:fs/promises";

const URL = process.argv[2] ?? "http://127.0.0.1:8000";
export const BASE = `${URL}/v1`, KEY = "compat-key", MODEL = "demo", QUESTION = "What is the weather in Rome?";
export const WEATHER = { type: "function", function: { name: "get_weather", description: "The weather of a city", parameters: {
  type: "object", properties: { city: { type: "string", enum: ["Rome", "Oslo"] } }, required: ["city"], additionalProperties: false } } };

export async function version(name) {
  const text = await readFile(`node_modules/${name}/package.json`, "utf8");
  console.log(JSON.stringify({ package: name, version: JSON.parse(text).version }));
}

export async function step(name, run) {
  let problem = null;
  try {
    const found = await run();
    if (!found) problem = `the answer is ${JSON.stringify(found)}`;
  } catch (error) {
    problem = `${error.name}: ${error.message}`;
  }
  console.log(JSON.stringify({ step: name, problem: problem && problem.split(/\s+/).join(" ").slice(0, 300) }));
}
