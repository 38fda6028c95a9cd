"use strict";
// The report's script: Bokeh draws; this shows cards, searches, and fills the tables.
let DATA = null;
const $ = (id) => document.getElementById(id);
const text = (k) => DATA.texts[k];
const MB = 2 ** 20;
const mb = (b) => (b / MB).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const ROWS = 200, SUMS = 15; // that a table shows at first

const olla = {
  order: 0,
  at: 0, // step that the table shows
  chosen: -1,
  matches: null, // Uint8Array by tensor, or null where nothing is searched
  only: new Set(), // numbers of the categories that are shown; none: all

  get view() { return DATA.views[this.order]; },
  get columns() { return this.view.columns; },

  row(k) {
    const c = this.columns;
    return {
      name: c.name[k], category: DATA.categories[c.category[k]], bytes: c.bytes[k],
      shape: text(c.shape[k]), op: text(c.op[k]), module: text(c.module[k]), line: text(c.line[k]), calls: text(c.calls[k]),
      argument: text(c.argument[k]), start: c.start[k], stop: c.stop[k], to: c.to[k],
      holder: text(c.holder[k]), holderLine: text(c.holder_line[k]),
      padding: c.padding[k], tighter: text(c.tighter[k]),
    };
  },

  // Cards.

  hover(order, k) {
    if (order === this.order && this.chosen < 0) this.card(k);
  },

  card(k) {
    const t = this.row(k), card = $("card");
    card.replaceChildren();
    card.dataset.tensor = t.name;
    const title = document.createElement("h3");
    title.append(mark(t.category[1]), t.argument && !t.op ? t.argument : t.name);
    const list = document.createElement("dl");
    const holder = t.holderLine || t.holder;
    const facts = [
      ["size", `${mb(t.bytes)} MB`], ["shape", t.shape],
      ["padding", t.padding ? `${mb(t.padding)} MB to whole tiles` : ""], ["tighter", t.tighter],
      ["what", t.category[0]],
      ["argument", t.argument], ["line", t.line], ["calls", t.calls], ["operation", t.op], ["module", t.module],
      ["steps", `${t.start} to ${t.stop}`],
      ["held until", t.to < this.view.steps ? `${t.to}, by ${holder}` : "the end"],
    ];
    for (const [name, value] of facts) {
      if (!value) continue;
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      for (const line of value.split("\n")) {
        const part = document.createElement("div");
        breakable(part, line);
        dd.append(part);
      }
      list.append(dt, dd);
    }
    card.append(title, list);
  },

  choose(order, k) {
    if (order !== this.order) return;
    this.chosen = k;
    this.card(k);
    const from = [], c = this.columns;
    c.made.forEach((made, j) => { if (made.includes(k)) from.push(j); });
    this.links("made from", from);
    this.links("read for", c.made[k]);
    this.outline([[k, "#d33"], ...from.map((j) => [j, "#e0a000"]),
      ...c.made[k].map((j) => [j, "#00a0c0"])]);
  },

  links(name, list) {
    if (!list.length) return;
    const heading = document.createElement("h4");
    heading.textContent = `${name} (${list.length})`;
    $("card").append(heading);
    for (const j of list) {
      const link = document.createElement("a"), t = this.row(j);
      link.textContent = `${t.argument && !t.op ? t.argument : t.name}, ${mb(t.bytes)} MB`;
      link.onclick = () => this.choose(this.order, j);
      $("card").append(link);
    }
  },

  outline(marks) {
    const c = this.columns, data = { left: [], right: [], bottom: [], top: [], color: [] };
    for (const [k, color] of marks) {
      data.left.push(c.start[k]);
      data.right.push(c.stop[k]);
      data.bottom.push(c.offset[k] / MB);
      data.top.push((c.offset[k] + c.bytes[k]) / MB);
      data.color.push(color);
    }
    this.document.get_model_by_name(`chosen-${this.order}`).data = data;
  },

  release() {
    this.chosen = -1;
    this.outline([]);
  },

  // Search.

  search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean), c = this.columns;
    if (!words.length) {
      this.matches = null;
    } else {
      const cache = new Map();
      const lower = (k) => {
        if (!cache.has(k)) cache.set(k, text(k).toLowerCase());
        return cache.get(k);
      };
      this.matches = new Uint8Array(c.name.length);
      for (let k = 0; k < c.name.length; k++) {
        const all = [c.name[k].toLowerCase(), lower(c.line[k]), lower(c.argument[k]), lower(c.op[k])];
        this.matches[k] = words.every((word) => all.some((one) => one.includes(word))) ? 1 : 0;
      }
    }
    const count = this.matches ? this.matches.reduce((a, b) => a + b, 0) : 0;
    $("found").textContent = this.matches ? `${count} of ${c.name.length} tensors` : "";
    this.shade();
    this.table();
  },

  shade() {
    const plot = this.document.get_model_by_name(`addresses-${this.order}`);
    for (const renderer of plot.renderers) {
      const source = renderer.data_source;
      if (!source.tags.includes("rectangles")) continue;
      const ids = source.data.id, alpha = new Float32Array(ids.length);
      for (let k = 0; k < ids.length; k++) {
        alpha[k] = this.isShown(ids[k]) && (!this.matches || this.matches[ids[k]]) ? 0.85 : 0.06;
      }
      source.data = { ...source.data, alpha };
    }
  },

  isShown(k) {
    return !this.only.size || this.only.has(this.columns.category[k]);
  },

  filter(category) {
    if (!this.only.delete(category)) this.only.add(category);
    $("categories").classList.toggle("filtered", this.only.size > 0);
    for (const row of $("categories").querySelectorAll("tr[data-category]")) {
      row.classList.toggle("only", this.only.has(Number(row.dataset.category)));
    }
    this.shade();
    this.table();
  },

  // Tables.

  step(order, x) {
    if (order !== this.order) return;
    this.at = Math.max(0, Math.min(this.view.steps - 1, Math.floor(x)));
    this.table();
  },

  table() {
    const c = this.columns, found = [];
    const everything = this.matches !== null;
    for (let k = 0; k < c.name.length; k++) {
      const here = c.start[k] <= this.at && this.at < c.stop[k];
      if (this.isShown(k) && (everything ? this.matches[k] : here)) found.push(k);
    }
    found.sort((a, b) => c.bytes[b] - c.bytes[a]);
    const sum = found.reduce((s, k) => s + c.bytes[k], 0);
    const what = everything ? "Found" :
      `In memory at step ${this.at}${this.at === this.view.peak ? ", the peak" : ""} ` +
      `(${text(this.view.running[this.at])})`;
    $("table-title").textContent = `${what}: ${found.length.toLocaleString("en")} tensors` +
      (everything ? "" : `, ${mb(sum)} MB of ${mb(this.view.total)} MB allocated`);
    const rows = found.map((k) => {
      const t = this.row(k);
      return [k, [t.bytes, ...(this.view.padded ? [t.padding] : []),
        [DATA.short[c.category[k]], t.category[1]], t.argument || t.line, t.shape,
        t.argument && !t.op ? "" : t.name, t.op, t.start, t.holderLine || t.holder]];
    });
    const none = !this.only.size || this.only.has(DATA.unused);
    if (!everything && none && this.at === this.view.peak) {
      for (const [why, bytes] of this.view.unused) {
        rows.push([-1, [bytes, ...(this.view.padded ? [0] : []), DATA.categories[DATA.unused],
          text(why), "", "", "", 0, ""]]);
      }
    }
    const padding = this.view.padded ? ["padding, MB|number bytes"] : [];
    fill("tensors", ["MB", ...padding, "category", "what", "shape|whole secondary", "tensor|secondary",
      "operation|secondary", "from step|number secondary", "last read by|secondary"], rows,
    (k) => k >= 0 && this.choose(this.order, k));
    this.sums(found);
  },

  // Bytes by module and by line of the tensors that the table lists.
  sums(found) {
    const modules = new Map(), lines = new Map();
    let whole = 0;
    const add = (sums, key, bytes) => sums.set(key, (sums.get(key) ?? 0) + bytes);
    for (const k of found) {
      const t = this.row(k), isArgument = t.argument && !t.op;
      whole += t.bytes;
      add(modules, t.module || (t.argument ? "(arguments)" : "(none)"), t.bytes);
      add(lines, isArgument || (t.argument && !t.line) ? "(arguments)" : t.line || "(none)", t.bytes);
    }
    for (const [id, sums] of [["modules", modules], ["lines", lines]]) {
      const rows = [...sums].map(([key, bytes]) =>
        [key, [bytes, (100 * bytes / Math.max(whole, 1)).toFixed(1), key]]);
      fill(id, ["MB", "%|number", id === "lines" ? "line" : "module"], rows, (key) => {
        if (id === "modules" || key.startsWith("(")) return;
        $("search").value = key;
        this.search(key);
      }, SUMS);
    }
  },

  // Orders, ranges, keys.

  show(order) {
    this.release();
    this.order = order;
    DATA.views.forEach((_, k) => {
      for (const name of ["timeline", "addresses"]) {
        this.document.get_model_by_name(`${name}-${k}`).visible = k === order;
      }
      const button = $(`order-${k}`);
      if (button) button.setAttribute("aria-pressed", String(k === order));
    });
    this.at = this.view.peak;
    this.search($("search").value);
  },

  range(start, end) {
    const range = this.document.get_model_by_name(`steps-${this.order}`);
    const width = Math.min(Math.max(end - start, 2), this.view.steps);
    const low = Math.min(Math.max(start, 0), this.view.steps - width);
    range.setv({ start: low, end: low + width });
  },

  zoom(factor, shift) {
    const range = this.document.get_model_by_name(`steps-${this.order}`);
    const width = (range.end - range.start) * factor;
    const middle = (range.start + range.end) / 2 + shift * (range.end - range.start);
    this.range(middle - width / 2, middle + width / 2);
  },

  key(event) {
    if (event.target === $("search")) {
      if (event.key === "Escape") this.clear();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const peak = this.view.peak, near = Math.max(this.view.steps / 20, 10);
    const actions = {
      "/": () => $("search").focus(), Escape: () => this.clear(),
      ArrowLeft: () => this.zoom(1, -0.2), ArrowRight: () => this.zoom(1, 0.2),
      "+": () => this.zoom(0.6, 0), "=": () => this.zoom(0.6, 0), "-": () => this.zoom(1.7, 0),
      0: () => this.range(0, this.view.steps), t: theme,
      p: () => { this.range(peak - near, peak + near); this.step(this.order, peak); },
      o: () => this.show((this.order + 1) % DATA.views.length),
    };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  },

  clear() {
    $("search").value = "";
    $("search").blur();
    this.release();
    this.search("");
  },
};

function mark(color) {
  const square = document.createElement("i");
  square.className = "mark";
  square.style.background = color;
  return square;
}

function cells(row, values, kinds) {
  values.forEach((value, k) => {
    const cell = row.insertCell();
    cell.className = kinds[k];
    if (Array.isArray(value)) cell.append(mark(value[1]), value[0]);
    else if (kinds[k].includes("bytes")) cell.textContent = value || k === 0 ? mb(value) : "";
    else if (kinds[k].includes("whole")) cell.textContent = cell.title = value;
    else breakable(cell, String(value));
  });
}

// Text that breaks where a path or an argument has a joint, before it breaks anywhere else.
function breakable(node, value) {
  value.split(/(?<=\/)|(?=\[)/).forEach((part, k) => {
    if (k) node.append(document.createElement("wbr"));
    node.append(part);
  });
}

const SORTS = {}; // by table: [column, whether it descends]

// Fills a table; headings are "name|classes of the column", the first column is of bytes. A click on
// a heading sorts by it, and a button below shows more rows.
function fill(id, headings, rows, click, shown = ROWS) {
  const table = $(id), names = headings.map((h) => h.split("|")[0]);
  const kinds = headings.map((h, k) => (k === 0 ? "number bytes" : h.split("|")[1] ?? ""));
  const [column, down] = SORTS[id] ?? [0, true];
  const value = (row) => (Array.isArray(row[1][column]) ? row[1][column][0] : row[1][column]);
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)], [m, n] = [Number(x), Number(y)];
    return x !== "" && y !== "" && !isNaN(m) && !isNaN(n) ? m - n : String(x).localeCompare(y);
  };
  const sorted = [...rows].sort((a, b) => (down ? -1 : 1) * compare(a, b));
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  names.forEach((name, k) => {
    const cell = document.createElement("th");
    cell.className = `${kinds[k].replace("number", "")} sorts`;
    cell.textContent = name + (k === column ? (down ? " \u25be" : " \u25b4") : "");
    cell.setAttribute("aria-sort", k === column ? (down ? "descending" : "ascending") : "none");
    cell.onclick = () => {
      SORTS[id] = [k, k === column ? !down : kinds[k].includes("number")];
      fill(id, headings, rows, click, shown);
    };
    head.append(cell);
  });
  const body = table.createTBody();
  for (const [key, values] of sorted.slice(0, shown)) {
    const row = body.insertRow();
    cells(row, values, kinds);
    if (click) row.onclick = () => click(key);
  }
  table.parentElement.querySelector("button.more")?.remove();
  if (rows.length > shown) {
    const more = document.createElement("button");
    more.className = "more";
    more.textContent = `more rows (${rows.length - shown} left)`;
    more.onclick = () => fill(id, headings, rows, click, shown + ROWS);
    table.after(more);
  }
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" :
    matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

function start(view) {
  olla.document = view.model.document;
  if (DATA.views.length > 1) {
    DATA.views.forEach((v, k) => {
      const button = document.createElement("button");
      button.id = `order-${k}`;
      button.textContent = v.order;
      button.onclick = () => olla.show(k);
      $("orders").append(button);
    });
  }
  fill("loops", ["most in use, MB", "line", "loop|secondary", "times|number", "from step|number"],
    DATA.loops.map((l) => [l, [l[5], l[1], l[0], l[4] ?? "?", l[2]]]),
    (l) => olla.range(l[2], l[3]));
  fill("donation", ["MB", "argument", "type|whole", "outcome", "why"],
    DATA.donation.map((d) => [d, [d[2], d[0], d[1], d[3], d[4]]]));
  for (const row of $("categories").querySelectorAll("tr[data-category]")) {
    row.onclick = () => olla.filter(Number(row.dataset.category));
  }
  $("loops-section").hidden = !DATA.loops.length;
  $("donation-section").hidden = !DATA.donation.length;
  $("theme").onclick = theme;
  let waiting = 0;
  $("search").oninput = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => olla.search($("search").value), 120);
  };
  document.addEventListener("keydown", (event) => olla.key(event));
  olla.show(olla.order);
  document.body.dataset.ready = "true";
}

async function unpack(id) {
  const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function main() {
  DATA = await unpack("data");
  olla.order = DATA.views.length - 1;
  const views = await Bokeh.embed.embed_item(await unpack("item"));
  start([...(views.roots ?? views)][0]);
}

window.olla = olla;
main();
