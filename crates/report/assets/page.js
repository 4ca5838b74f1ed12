// Draws the figures that stand as JSON in #charts. No request, no storage; redraws on resize and change of theme.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("charts").textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const digits = (v) => v == null ? "–" : v === 0 ? "0" : String(Number(v.toPrecision(4)));
  const bytes = (v) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (v >= 1024 && at < units.length - 1) { v /= 1024; at += 1; }
    return digits(v) + " " + units[at];
  };

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
      return { ...base, dash: s.limit ? [8, 5] : undefined, points: { show: !s.limit, size: 6 } };
    });
    const x = { time: false };
    if (isBars) x.range = () => [-0.6, figure.categories.length - 0.4];
    else if (figure.x.log) x.distr = 3;
    const y = figure.y.log ? { distr: 3 } : { range: (_, __, max) => [0, (max || 1) * 1.08] };
    if (figure.x.log) x.log = figure.x.unit === "bytes" ? 2 : 10;
    const xAxis = isBars
      ? axis("", { splits: () => figure.categories.map((_, i) => i), rotate: narrow || figure.categories.length > 7 ? -35 : 0,
          size: narrow || figure.categories.length > 7 ? 84 : 40, values: (_, at) => at.map((v) => nearest(v)), grid: { show: false } })
      : axis(figure.x.label, { space: 70, values: (_, at) => at.map((v) => v == null ? "" : figure.x.unit === "bytes" ? bytes(v) : digits(v)) });
    return {
      data: laid.data,
      options: {
        width: host.clientWidth, height: narrow ? 300 : 360, scales: { x, y },
        cursor: { points: { size: 8 } },
        legend: { live: figure.series.length <= 12 },
        series: [{ label: figure.x.label || "at", value: (_, v) => v == null ? "–" : isBars ? nearest(v) : figure.x.unit === "bytes" ? bytes(v) : digits(v) }, ...series],
        axes: [xAxis, axis(figure.y.label, { size: 66, values: (_, at) => at.map((v) => v == null ? "" : digits(v)) })],
        hooks: isBars ? { draw: [limitMarks(figure, laid.width)] } : {},
      },
    };
  };

  const minGap = (xs) => xs.slice(1).reduce((least, x, at) => Math.min(least, x - xs[at]), 1);

  let charts = [];
  const draw = () => {
    charts.forEach((chart) => chart.destroy());
    charts = [...document.querySelectorAll(".chart")].map((host) => {
      const { data, options: opts } = options(figures[Number(host.dataset.figure)], host);
      return new uPlot(opts, data, host);
    });
    document.body.dataset.charts = String(charts.length);
  };
  draw();
  let pending;
  addEventListener("resize", () => { clearTimeout(pending); pending = setTimeout(draw, 120); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // Meshes: colour and number of each counted node in the interval that the slider stands at.
  JSON.parse(document.getElementById("meshes").textContent).forEach((mesh, nth) => {
    const slider = document.querySelector(`[data-mesh="${nth}"]`);
    if (!slider) return;
    const section = document.getElementById(mesh.id);
    const output = section.querySelector("output");
    const short = (v) => {
      const unit = v < 1e3 ? [1, ""] : v < 1e6 ? [1e3, "k"] : v < 1e9 ? [1e6, "M"] : [1e9, "G"];
      return digits(v / unit[0]) + unit[1] + "/s";
    };
    const show = () => {
      const at = Number(slider.value);
      mesh.rates[at].forEach((rate, node) => {
        const box = section.querySelector(`[data-node="${node}"]`);
        const text = section.querySelector(`[data-rate="${node}"]`);
        if (!box) return;
        box.setAttribute("fill-opacity", rate == null ? 0 : 0.1 + 0.75 * rate / (mesh.most || 1));
        text.textContent = rate == null ? "–" : short(rate);
      });
      output.textContent = `until ${mesh.times_s[at].toFixed(1)} s`;
    };
    slider.addEventListener("input", show);
    const button = section.querySelector("[data-play]");
    let timer = null;
    button.addEventListener("click", () => {
      if (timer) { clearInterval(timer); timer = null; button.textContent = "Play"; return; }
      button.textContent = "Stop";
      if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
      timer = setInterval(() => {
        if (Number(slider.value) >= Number(slider.max)) { button.click(); return; }
        slider.value = Number(slider.value) + 1;
        show();
      }, 250);
    });
    show();
  });
})();
