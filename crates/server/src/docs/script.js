// Renders openapi.json. Only text nodes are made of what the document says, never HTML.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete"];
let api = {};

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Backticks become code.
function inline(text) {
  return text.split("`").map((part, n) => (n % 2 ? make("code", {}, part) : part));
}

// Paragraphs, and lines that begin with a hyphen as a list.
function prose(text) {
  return (text || "").split("\n\n").map((part) => {
    const lines = part.split("\n");
    if (lines.every((line) => line.startsWith("- "))) {
      return make("ul", {}, lines.map((line) => make("li", {}, inline(line.slice(2)))));
    }
    return make("p", {}, inline(part));
  });
}

function resolve(value) {
  if (!value || !value.$ref) return value || {};
  const path = value.$ref.slice(2).split("/");
  return path.reduce((at, name) => (at || {})[name], api) || {};
}

function nameOf(value) {
  return value.$ref ? value.$ref.split("/").pop() : null;
}

// The type of a schema in a few words, with links to named ones.
function type(schema) {
  const name = nameOf(schema);
  if (name) return [make("a", { href: `#schema-${name}` }, name)];
  const choices = schema.oneOf || schema.anyOf;
  if (choices) return choices.flatMap((choice, n) => (n ? [" or ", ...type(choice)] : type(choice)));
  if (schema.items) {
    return ["array of ", ...type(schema.items || {})];
  }
  const kinds = [].concat(schema.type || "any");
  return [kinds.join(" or ") + (schema.format ? ` (${schema.format})` : "")];
}

function bounds(schema) {
  const said = [];
  const say = (label, key) => { if (schema[key] !== undefined && schema[key] !== null) said.push(`${label} ${JSON.stringify(schema[key])}`); };
  if (schema.enum) said.push(`one of ${schema.enum.map((word) => JSON.stringify(word)).join(", ")}`);
  say("from", "minimum"); say("to", "maximum"); say("at least this long:", "minLength");
  say("at most this long:", "maxLength"); say("items from", "minItems"); say("items to", "maxItems");
  say("entries to", "maxProperties"); say("pattern", "pattern"); say("to, of /v1/info:", "x-maximum"); say("default", "default");
  return said.length ? make("div", { class: "soft" }, said.join("; ")) : null;
}

function fields(schema) {
  const parts = (schema.allOf || []).map((part) => fields(resolve(part)));
  const required = schema.required || [];
  const rows = Object.entries(schema.properties || {}).map(([name, field]) =>
    row(name, required.includes(name), field, field.description || resolve(field).description));
  return [...parts.flat(), ...rows];
}

function row(name, required, schema, about) {
  return make("tr", {},
    make("td", {}, make("code", {}, name), required ? make("div", { class: "soft" }, "required") : null),
    make("td", {}, type(schema), prose(about), bounds(schema)));
}

function table(rows, caption) {
  if (!rows.length) return null;
  return make("table", {}, make("caption", { class: "soft" }, caption), make("tbody", {}, rows));
}

function example(value) {
  return make("pre", { tabindex: "0" }, typeof value === "string" ? value : JSON.stringify(value, null, 2));
}

function content(part) {
  return Object.entries(part.content || {}).flatMap(([kind, media]) => {
    const named = Object.entries(media.examples || {}).slice(0, 1).map(([, one]) => one.value);
    const shown = media.example !== undefined ? [media.example] : named;
    return [make("p", {}, make("code", {}, kind), " ", ...type(media.schema || {})), ...shown.map(example)];
  });
}

function parameters(call) {
  return (call.parameters || []).map(resolve).map((one) =>
    row(`${one.name}`, one.required, one.schema || {}, `${one.description || ""} (${one.in})`));
}

function answer(status, response) {
  const known = resolve(response);
  const headers = Object.keys(known.headers || {});
  return make("details", {},
    make("summary", {}, make("strong", {}, status), " ",
      inline((known["x-error-codes"] || [known.description]).join(", "))),
    prose(known.description), headers.length ? make("p", { class: "soft" }, `Headers: ${headers.join(", ")}`) : null,
    content(known));
}

function call(path, method, one, hasHead) {
  const body = one.requestBody;
  const open = one.security && one.security.length === 0;
  return make("details", { id: `call-${one.operationId}`, "data-words": `${method} ${path} ${one.operationId} ${one.summary} ${one.description || ""}`.toLowerCase() },
    make("summary", {}, make("span", { class: "method" }, method.toUpperCase()), make("code", {}, path), " ",
      make("span", { class: "soft" }, inline(one.summary || ""))),
    prose(one.description || one.summary),
    make("p", { class: "soft" }, open ? "Needs no key." : "Needs the API key.", hasHead ? " HEAD works too." : ""),
    table(parameters(one), "Parameters"),
    body ? make("h4", {}, body.required ? "Body" : "Body, may be absent") : null,
    body ? content(body) : null,
    make("h4", {}, "Answers"),
    Object.entries(one.responses || {}).map(([status, response]) => answer(status, response)));
}

function render() {
  document.title = `${api.info.title} API ${api.info.version}`;
  document.getElementById("title").textContent = document.title;
  document.getElementById("about").replaceChildren(...prose(api.info.description));
  const index = document.getElementById("index");
  const calls = document.getElementById("calls");
  for (const tag of api.tags || []) {
    const found = Object.entries(api.paths).flatMap(([path, item]) =>
      METHODS.filter((method) => item[method] && item[method].tags[0] === tag.name)
        .map((method) => [path, method, item[method], method === "get" && item.head]));
    if (!found.length) continue;
    index.append(make("h2", {}, tag.name), ...found.map(([path, method, one]) =>
      make("a", { href: `#call-${one.operationId}`, title: `${method.toUpperCase()} ${path}` }, one.operationId)));
    calls.append(make("h2", { id: `tag-${tag.name}` }, tag.name), ...prose(tag.description),
      ...found.map((one) => call(...one)));
  }
  document.getElementById("schemas").append(...Object.entries(api.components.schemas).map(([name, schema]) =>
    make("details", { id: `schema-${name}` },
      make("summary", {}, make("code", {}, name)), prose(schema.description),
      fields(schema).length ? table(fields(schema), "Fields") : make("p", {}, type(schema), bounds(schema)))));
  document.getElementById("state").textContent = "";
}

// A link to a call or schema opens it.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.tagName === "DETAILS") {
    target.open = true;
    target.querySelector("summary").focus({ preventScroll: true });
  }
  target.scrollIntoView();
}

function filter(event) {
  const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const one of document.querySelectorAll("#calls > details")) {
    const fits = words.every((word) => one.dataset.words.includes(word));
    one.hidden = !fits;
    const link = document.querySelector(`nav a[href="#${one.id}"]`);
    if (link) link.hidden = !fits;
  }
}

async function start() {
  const state = document.getElementById("state");
  try {
    const response = await fetch("openapi.json");
    if (!response.ok) throw new Error(`status ${response.status}`);
    api = await response.json();
    render();
    document.getElementById("filter").addEventListener("input", filter);
    addEventListener("hashchange", openTarget);
    openTarget();
  } catch (error) {
    state.textContent = `openapi.json could not be shown: ${error.message}`;
  }
}

start();
