// Draws the figures, each from the JSON in its section. No request, no storage; redraws on resize and
// change of theme.
"use strict";
(() => {
  // For the test in a browser: what went wrong is counted, as are requests that the policy stopped.
  let faults = 0;
  const fault = () => { faults += 1; document.body.dataset.faults = String(faults); };
  addEventListener("error", fault);
  addEventListener("unhandledrejection", fault);
  document.addEventListener("securitypolicyviolation", fault);
  document.body.dataset.faults = "0";
  // The data of the section of an element.
  const dataOf = (element) => JSON.parse(element.closest("section").querySelector("script[type='application/json']").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = (v) => v == null ? "–" : v === 0 ? "0" : String(Number(v.toPrecision(4)));
  const bytes = (v) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (v >= 1024 && at < units.length - 1) { v /= 1024; at += 1; }
    return digits(v) + " " + units[at];
  };

  // A value of the horizontal axis in its unit.
  const inUnit = (figure, x) => ({ bytes }[figure.x.unit] ?? digits)(x);

  // Groups of bars stand side by side: each series gets its own place beside the category's middle.
  const spread = (figure) => {
    const bars = figure.series.filter((s) => !s.limit);
    const width = 0.8 / Math.max(1, bars.length);
    const place = new Map();
    figure.series.forEach((series) => {
      const shift = series.limit ? 0 : (bars.indexOf(series) - (bars.length - 1) / 2) * width;
      series.ys.forEach((y, at) => {
        const x = at + shift;
        if (!place.has(x)) place.set(x, new Map());
        place.get(x).set(series, y);
      });
    });
    const xs = [...place.keys()].sort((a, b) => a - b);
    return { width, data: [xs, ...figure.series.map((s) => xs.map((x) => place.get(x).get(s) ?? null))] };
  };

  const limitMarks = (figure, width) => (u) => {
    const ctx = u.ctx;
    figure.series.forEach((series, s) => {
      if (!series.limit || !u.series[s + 1].show) return;
      ctx.save();
      ctx.strokeStyle = colour("--s1");
      ctx.lineWidth = 2.5 * devicePixelRatio;
      u.data[0].forEach((x, at) => {
        const y = u.data[s + 1][at];
        if (y == null) return;
        const half = 0.44;
        const py = u.valToPos(y, "y", true);
        ctx.beginPath();
        ctx.moveTo(u.valToPos(x - half, "x", true), py);
        ctx.lineTo(u.valToPos(x + half, "x", true), py);
        ctx.stroke();
      });
      ctx.restore();
    });
  };

  // 95 % intervals: a band behind a line, a whisker on a bar.
  const bands = (figure) => (u) => {
    const ctx = u.ctx;
    figure.series.forEach((series, s) => {
      if (!series.band || !u.series[s + 1].show) return;
      ctx.save();
      // An interval may reach beyond the axes: not over their labels.
      ctx.beginPath();
      ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
      ctx.clip();
      ctx.strokeStyle = ctx.fillStyle = colour("--s" + (s % 8));
      if (figure.kind === "bars") {
        ctx.strokeStyle = colour("--ink");
        ctx.lineWidth = 1.5 * devicePixelRatio;
        const laid = spread(figure);
        const bars = figure.series.filter((other) => !other.limit);
        series.band.forEach((interval, at) => {
          if (!interval) return;
          const x = u.valToPos(at + (bars.indexOf(series) - (bars.length - 1) / 2) * laid.width, "x", true);
          const [low, high] = interval.map((y) => u.valToPos(y, "y", true));
          const half = 4 * devicePixelRatio;
          ctx.beginPath();
          ctx.moveTo(x, low); ctx.lineTo(x, high);
          ctx.moveTo(x - half, low); ctx.lineTo(x + half, low);
          ctx.moveTo(x - half, high); ctx.lineTo(x + half, high);
          ctx.stroke();
        });
      } else {
        ctx.globalAlpha = 0.18;
        const there = figure.xs.map((x, at) => [x, series.band[at]]).filter(([, interval]) => interval);
        ctx.beginPath();
        there.forEach(([x, [low]], at) => ctx[at ? "lineTo" : "moveTo"](u.valToPos(x, "x", true), u.valToPos(low, "y", true)));
        there.reverse().forEach(([x, [, high]]) => ctx.lineTo(u.valToPos(x, "x", true), u.valToPos(high, "y", true)));
        ctx.fill();
      }
      ctx.restore();
    });
  };
  const root = document.documentElement;
  const onPaper = () => root.classList.contains("paper");
  // Lines differ by more than their colour.
  const dashes = [undefined, [10, 4], [3, 3], [12, 3, 3, 3], [6, 6], [2, 6], [14, 4, 4, 4, 4, 4], [8, 2]];

  const axis = (label, extra) => ({
    label, labelSize: 22, labelFont: "13px system-ui, sans-serif", font: "12px system-ui, sans-serif",
    stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, ...extra,
  });

  const options = (figure, host) => {
    const isBars = figure.kind === "bars";
    const laid = isBars ? spread(figure) : { width: 0, data: [figure.xs, ...figure.series.map((s) => s.ys)] };
    const nearest = (x) => figure.categories[Math.round(x)] ?? "";
    const narrow = host.clientWidth < 640;
    const series = figure.series.map((s, at) => {
      const base = { label: s.label, stroke: colour("--s" + (at % 8)), width: 2, value: (_, v) => digits(v), spanGaps: true };
      if (isBars && s.limit) return { ...base, stroke: colour("--s1"), paths: () => null, points: { show: false } };
      if (isBars) {
        return { ...base, width: 0, fill: base.stroke, points: { show: false },
          paths: uPlot.paths.bars({ size: [laid.width * (figure.categories.length > 1 ? 0.9 * minGap(laid.data[0]) / laid.width : 0.3), 90] }) };
      }
      if (figure.kind === "points") return { ...base, paths: () => null, points: { show: true, size: 4, stroke: base.stroke, fill: base.stroke } };
      return { ...base, dash: s.limit ? [8, 5] : dashes[at % 8], points: { show: !s.limit && figure.xs.length < 200, size: 6 } };
    });
    const x = { time: false };
    if (isBars) x.range = () => [-0.6, figure.categories.length - 0.4];
    else if (figure.x.log) x.distr = 3;
    const y = figure.y.log ? { distr: 3 } : { range: (u, _, max) => [0, (Math.max(max || 0, highest(figure, u)) || 1) * 1.08] };
    if (figure.x.log) x.log = figure.x.unit === "bytes" ? 2 : 10;
    const xAxis = isBars
      ? axis("", { splits: () => figure.categories.map((_, i) => i), rotate: narrow || figure.categories.length > 7 ? -35 : 0,
          size: narrow || figure.categories.length > 7 ? 84 : 40, values: (_, at) => at.map((v) => nearest(v)), grid: { show: false } })
      : axis(figure.x.label, { space: 70, values: (_, at) => at.map((v) => v == null ? "" : inUnit(figure, v)) });
    return {
      data: laid.data,
      options: {
        width: host.clientWidth, height: onPaper() ? 250 : 280, scales: { x, y },
        tzDate: (s) => uPlot.tzDate(new Date(s * 1e3), "Etc/UTC"),
        cursor: { points: { size: 8 } },
        legend: { live: figure.series.length <= 12 },
        series: [{ label: figure.x.label || "at", value: (_, v) => v == null ? "–" : isBars ? nearest(v) : inUnit(figure, v) }, ...series],
        axes: [xAxis, axis(figure.y.label, { size: 66, values: (_, at) => at.map((v) => v == null ? "" : digits(v)) })],
        hooks: isBars ? { draw: [limitMarks(figure, laid.width), bands(figure)] } : { drawClear: [bands(figure)] },
      },
    };
  };

  // The highest end of an interval that is shown: whiskers are within the axes.
  const highest = (figure, u) => figure.series.reduce((most, s, at) =>
    s.band && u.series[at + 1]?.show ? s.band.reduce((m, interval) => Math.max(m, interval?.[1] ?? 0), most) : most, 0);

  const minGap = (xs) => xs.slice(1).reduce((least, x, at) => Math.min(least, x - xs[at]), 1);

  // Series are hidden and shown by the keyboard as by the mouse.
  const legendTakesFocus = (chart) => {
    chart.root.querySelectorAll(".u-legend .u-series").forEach((row, at) => {
      const name = row.querySelector("th");
      if (at === 0 || !name) return;
      name.tabIndex = 0;
      name.setAttribute("role", "button");
      const told = () => name.setAttribute("aria-pressed", String(chart.series[at].show));
      name.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        name.click();
        event.preventDefault();
      });
      name.addEventListener("click", () => setTimeout(told));
      told();
    });
  };

  const charts = new Map();
  const hosts = () => [...document.querySelectorAll(".chart")];
  const drawOne = (host) => {
    const { data, options: opts } = options(dataOf(host), host);
    const chart = new uPlot(opts, data, host);
    legendTakesFocus(chart);
    charts.set(host, chart);
  };
  const draw = () => {
    charts.forEach((chart) => chart.destroy());
    charts.clear();
    hosts().forEach(drawOne);
    document.body.dataset.charts = String(charts.size);
  };

  // What a place of the horizontal axis is called.
  const placeName = (figure, x) =>
    figure.categories[Math.round(x)] ?? inUnit(figure, x);

  // Arrow keys move the cursor from value to value; the legend shows them, and a reader of the screen is told.
  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const host = event.target;
    // The legend has keys of its own.
    const u = charts.get(host);
    if (!by || !u) return;
    const most = u.data[0].length - 1;
    const at = Math.max(0, Math.min(most, (u.cursor.idx ?? (by > 0 ? -1 : most + 1)) + by));
    u.setCursor({ left: u.valToPos(u.data[0][at], "x"), top: u.over.clientHeight / 2 });
    const figure = dataOf(host);
    const values = figure.series
      .map((s, i) => [s.label, u.series[i + 1].show ? u.data[i + 1][at] : null])
      .filter(([, v]) => v != null).map(([label, v]) => `${label}: ${digits(v)}`);
    host.closest("section").querySelector(".told").textContent =
      `${placeName(figure, u.data[0][at])}: ${values.join(", ")} (${figure.y.label})`;
    event.preventDefault();
  });

  const table = (figure) => {
    const quoted = (text) => /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const unit = figure.y.label ? ` [${figure.y.label}]` : "";
    const headings = [(figure.x.label || "category") + (figure.x.unit === "bytes" ? " [bytes]" : "")];
    figure.series.forEach((s) => { headings.push(s.label + unit); if (s.band) headings.push(`${s.label} low${unit}`, `${s.label} high${unit}`); });
    const lines = figure.xs.map((x, at) => [figure.categories[at] ?? String(x), ...figure.series.flatMap((s) =>
      [s.ys[at], ...(s.band ? (s.band[at] ?? [null, null]) : [])].map((v) => v == null ? "" : String(v)))]);
    return [headings, ...lines].map((cells) => cells.map(quoted).join(",")).join("\n") + "\n";
  };

  // The same figure as drawing: for papers and slides.
  const vector = (figure, isShown = () => true) => {
    // The legend is as high as its series need, below the names of the horizontal axis.
    const below = figure.kind === "bars" ? 110 : 52;
    const rows = Math.ceil(figure.series.filter((_, at) => isShown(at)).length / 2);
    const [w, h, left, top, right] = [860, 420 + below + rows * 16, 86, 44, 20];
    const bottom = below + rows * 16 + 8;
    const legend = h - rows * 16 - 4;
    const text = (s) => String(s).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
    const bars = figure.kind === "bars";
    const shown = figure.series.map((s, at) => ({ ...s, at })).filter((s) => isShown(s.at));
    const ys = shown.flatMap((s) => s.ys).filter((y) => y != null && (!figure.y.log || y > 0));
    if (!ys.length) ys.push(1);
    const scale = (values, log, from, to) => {
      let [least, most] = [Math.min(...values), Math.max(...values)];
      if (log) { least = Math.log10(least); most = Math.log10(most); }
      if (most === least) most = least + 1;
      return { at: (v) => from + ((log ? Math.log10(v) : v) - least) / (most - least) * (to - from), least, most };
    };
    const x = bars ? scale([-0.6, figure.categories.length - 0.4], false, left, w - right) : scale(figure.xs.filter((v) => !figure.x.log || v > 0), figure.x.log, left, w - right);
    const y = scale(figure.y.log ? ys : [0, ...ys.map((v) => v * 1.05)], figure.y.log, h - bottom, top);
    // Round numbers: steps of 1, 2 or 5 times a power of ten; powers of ten, or of two for bytes, on a logarithmic axis.
    const steps = (least, most, few) => {
      const rough = (most - least) / few;
      const power = 10 ** Math.floor(Math.log10(rough));
      return power * [1, 2, 5, 10].find((step) => step * power >= rough);
    };
    const ticks = (s, log, isBytes) => {
      const base = isBytes ? Math.log10(2) : 1;
      const [least, most] = log ? [s.least / base, s.most / base] : [s.least, s.most];
      const step = log ? Math.max(1, Math.ceil((most - least) / 8)) : steps(least, most, 6);
      const all = [];
      for (let v = Math.ceil(least / step - 1e-9) * step; v <= most + step * 1e-9; v += step) all.push(v);
      // Less than a decade: the ends of the axis say more than one power.
      const few = log && all.length < 2 ? [least, most] : all;
      return few.map((v) => log ? 10 ** (v * base) : Number(v.toPrecision(12)));
    };
    const paint = (at) => colour("--s" + (at % 8));
    let out = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${w} ${h}" width="${w}" height="${h}" font-family="sans-serif" font-size="12" fill="${colour("--ink")}"><rect width="${w}" height="${h}" fill="${colour("--paper")}"/><text x="${left}" y="22" font-size="16" font-weight="600">${text(figure.title)}</text>`;
    ticks(y, figure.y.log).forEach((v) => { out += `<line x1="${left}" x2="${w - right}" y1="${y.at(v)}" y2="${y.at(v)}" stroke="${colour("--line")}"/><text x="${left - 6}" y="${y.at(v) + 4}" text-anchor="end">${text(digits(v))}</text>`; });
    if (bars) figure.categories.forEach((name, at) => { out += `<text transform="translate(${x.at(at)} ${h - bottom + 14}) rotate(-30)" text-anchor="end">${text(name)}</text>`; });
    else ticks(x, figure.x.log, figure.x.unit === "bytes").forEach((v) => { out += `<text x="${x.at(v)}" y="${h - bottom + 18}" text-anchor="middle">${text(inUnit(figure, v))}</text>`; });
    out += `<text x="${(left + w - right) / 2}" y="${h - bottom + 36}" text-anchor="middle">${text(figure.x.label)}</text><text transform="translate(16 ${(top + h - bottom) / 2}) rotate(-90)" text-anchor="middle">${text(figure.y.label)}</text>`;
    const solid = shown.filter((s) => !s.limit);
    const [floor, ceiling] = [h - bottom, top];
    const clamped = (v) => figure.y.log && v <= 0 ? floor : Math.min(floor, Math.max(ceiling, y.at(v)));
    shown.forEach((s, nth) => {
      const at = s.at;
      if (s.band && !bars) {
        const there = figure.xs.map((v, i) => [x.at(v), s.band[i]]).filter(([, interval]) => interval);
        const edge = [...there.map(([px, [low]]) => [px, clamped(low)]), ...there.reverse().map(([px, [, high]]) => [px, clamped(high)])];
        out += `<polygon fill="${paint(at)}" fill-opacity="0.18" points="${edge.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ")}"/>`;
      }
      const points = s.ys.map((v, i) => v == null || (figure.y.log && v <= 0) ? null : [x.at(bars ? i : figure.xs[i]), y.at(v)]);
      if (bars) {
        const width = (x.at(1) - x.at(0)) * 0.8 / Math.max(1, solid.length);
        points.forEach((p) => {
          if (!p) return;
          const from = p[0] + (s.limit ? -width * solid.length / 2 : (solid.indexOf(s) - solid.length / 2) * width);
          out += s.limit ? `<line x1="${from}" x2="${from + width * solid.length}" y1="${p[1]}" y2="${p[1]}" stroke="${colour("--s1")}" stroke-width="2.5"/>`
            : `<rect x="${from}" y="${p[1]}" width="${width * 0.92}" height="${h - bottom - p[1]}" fill="${paint(at)}"/>`;
        });
        s.band?.forEach((interval, i) => {
          if (!interval) return;
          const middle = x.at(i) + (solid.indexOf(s) - solid.length / 2 + 0.46) * width;
          const [low, high] = interval.map(clamped);
          out += `<path stroke="${colour("--ink")}" fill="none" d="M${middle} ${low}V${high}M${middle - 4} ${low}h8M${middle - 4} ${high}h8"/>`;
        });
      } else {
        const line = points.filter(Boolean);
        if (figure.kind !== "points" && line.length) out += `<polyline fill="none" stroke="${paint(at)}" stroke-width="2" stroke-dasharray="${(s.limit ? [8, 5] : dashes[at % 8] ?? []).join(" ")}" points="${line.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ")}"/>`;
        if (line.length < 200 || figure.kind === "points") line.forEach((p) => { out += `<circle cx="${p[0].toFixed(1)}" cy="${p[1].toFixed(1)}" r="2.5" fill="${paint(at)}"/>`; });
      }
      const place = left + (nth % 2) * 380;
      const line = legend + Math.floor(nth / 2) * 16;
      out += `<rect x="${place}" y="${line}" width="10" height="10" fill="${s.limit && bars ? colour("--s1") : paint(at)}"/><text x="${place + 15}" y="${line + 9}">${text(s.label)}</text>`;
    });
    return out + "</svg>";
  };

  const save = (name, url) => {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
  };
  document.addEventListener("click", (event) => {
    const as = event.target.dataset?.as;
    if (!as) return;
    const host = event.target.closest("section").querySelector(".chart");
    const figure = dataOf(host);
    if (as === "csv") save(figure.id + ".csv", "data:text/csv;charset=utf-8," + encodeURIComponent(table(figure)));
    const isShown = (at) => charts.get(host)?.series[at + 1]?.show ?? true;
    const drawing = as === "svg" || as === "png" ? "data:image/svg+xml;charset=utf-8," + encodeURIComponent(vector(figure, isShown)) : "";
    if (as === "svg") save(figure.id + ".svg", drawing);
    if (as !== "png") return;
    // The drawing has title, axes and legend; twice its size is sharp on paper.
    const picture = new Image();
    picture.addEventListener("load", () => {
      const canvas = document.createElement("canvas");
      canvas.width = picture.width * 2;
      canvas.height = picture.height * 2;
      canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
      save(figure.id + ".png", canvas.toDataURL("image/png"));
    });
    picture.src = drawing;
  });
  let pending;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 120); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // On paper figures are light, as wide as the sheet, and two to a page.
  for (const [when, paper] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(when, () => { root.classList.toggle("paper", paper); draw(); });
  }

  draw();
  // For the test in a browser: paths that are seen without scrolling, of all.
  const rows = [...document.querySelectorAll(".path summary")];
  const isSeen = (row) => [row, ...row.querySelectorAll(".name, .rate, .by")].every((part) => {
    const { right, bottom } = part.getBoundingClientRect();
    return right <= innerWidth && bottom <= innerHeight;
  });
  document.body.dataset.seen = `${rows.filter(isSeen).length} of ${rows.length}`;
  // Every figure can be saved in every form.
  const figures = hosts().map(dataOf);
  document.body.dataset.saves = String(figures.filter((figure) => table(figure).length > 2 && vector(figure).endsWith("</svg>")).length);
})();
