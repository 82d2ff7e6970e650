// Runs the script of /docs on a document, with as much of a browser as it needs: SCRIPT DOCUMENT.
import assert from "node:assert";
import fs from "node:fs";
import vm from "node:vm";

class Element {
  constructor(tag) {
    this.tag = tag; this.tagName = tag.toUpperCase(); this.attributes = {}; this.children = [];
    this.dataset = {}; this.hidden = false; this.text = "";
  }
  setAttribute(name, value) {
    this.attributes[name] = value;
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
    if (name === "id") this.id = value;
  }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener() {}
  set textContent(text) { this.children = [text]; }
  get textContent() {
    return this.children.map((child) => (child instanceof Element ? child.textContent : child)).join("");
  }
  all() { return [this, ...this.children.flatMap((child) => (child instanceof Element ? child.all() : []))]; }
}

const [script, documentPath] = process.argv.slice(2);
const api = JSON.parse(fs.readFileSync(documentPath, "utf8"));
const places = Object.fromEntries(["filter", "index", "title", "about", "calls", "schemas", "state"]
  .map((id) => [id, new Element(id)]));
const document = {
  title: "",
  createElement: (tag) => new Element(tag),
  getElementById: (id) => places[id] ?? null,
};
const context = vm.createContext({
  document, location: { hash: "" }, addEventListener() {}, decodeURIComponent, JSON, Object,
  fetch: async (address) => {
    // Relative to the page, which a proxy may have put below a prefix.
    assert.equal(address, "openapi.json");
    return { ok: true, json: async () => api };
  },
});
vm.runInContext(fs.readFileSync(script, "utf8"), context);
await new Promise(setImmediate);

assert.equal(places.state.textContent, "", places.state.textContent);
const shown = places.calls.all().filter((one) => one.id?.startsWith("call-")).map((one) => one.id);
const calls = Object.values(api.paths).flatMap((item) =>
  Object.entries(item).filter(([method]) => method !== "head").map(([, call]) => `call-${call.operationId}`));
assert.deepEqual(shown.toSorted(), calls.toSorted());
assert.equal(places.index.all().filter((one) => one.tag === "a").length, calls.length);
const schemas = places.schemas.all().filter((one) => one.id?.startsWith("schema-"));
assert.equal(schemas.length, Object.keys(api.components.schemas).length);
for (const link of [...places.calls.all(), ...places.schemas.all()].filter((one) => one.tag === "a")) {
  const target = link.attributes.href.slice(1);
  assert(schemas.some((one) => one.id === target), `a dead link: ${target}`);
}
// Text stays text.
assert(![...places.calls.all()].some((one) => one.tag === "script"));
const all = places.calls.textContent;
for (const word of ["SESSION_NOT_FOUND", "X-Request-Id", "print('hello')"]) assert(all.includes(word), word);
console.log(`${calls.length} calls`);
