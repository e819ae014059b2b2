// Colours. Those of the roles are the same everywhere in KOSMOS (kosmos/plots.py), on light and on dark.

import { ROLES, WAIT } from "./page.js";

// Okabe and Ito's colours: told apart with any colour vision, on white and on black. Waiting is a veil over either.
export const PALETTE = {
  mover: "#E69F00",
  builder: "#0072B2",
  reducer: "#009E73",
  router: "#CC79A7",
  pusher: "#D55E00",
  folder: "#56B4E9",
  wait: "#80808099",
};

export const nameOf = (kind) => (kind === WAIT ? "wait" : ROLES[kind]);

export function rgba(colour) {
  if (colour.startsWith("#")) {
    const part = (at) => parseInt(colour.slice(at, at + 2), 16);
    return [part(1), part(3), part(5), colour.length > 7 ? part(7) / 255 : 1];
  }
  const parts = colour.match(/[\d.]+/g)?.map(Number) ?? [255, 255, 255];
  return [parts[0], parts[1], parts[2], parts[3] ?? 1];
}

const luminance = ([r, g, b]) => {
  const linear = (v) => ((v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
};

/** Black or white, whichever reads better on the colour of a kind. */
export const inkOn = (kind) => {
  const light = luminance(rgba(PALETTE[nameOf(kind)]));
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000000" : "#ffffff";
};

/** Whether the page around `element` is dark: JupyterLab, VS Code, Colab and marimo say so; else its colour, else the system. */
export function isDark(element) {
  const { body, documentElement: html } = document;
  const lab = body.dataset.jpThemeLight;
  if (lab) return lab === "false";
  const kind = body.dataset.vscodeThemeKind ?? body.className;
  if (/vscode-(dark|high-contrast(?!-light))/.test(kind)) return true;
  if (/vscode-(light|high-contrast-light)/.test(kind)) return false;
  const said = html.getAttribute("theme") ?? html.dataset.theme ?? body.dataset.theme;
  if (said === "dark" || said === "light") return said === "dark";
  if (body.classList.contains("dark") || html.classList.contains("dark")) return true;
  for (let at = element; at; at = at.parentElement) {
    const [r, g, b, alpha] = rgba(getComputedStyle(at).backgroundColor);
    if (alpha > 0.5) return luminance([r, g, b]) < 0.18;
  }
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Calls `changed` whenever the theme of the page may have changed; returns what ends that. */
export function watchTheme(changed) {
  // The style sheets of a theme arrive after the attribute that announces it.
  const timers = new Set();
  const soon = () => {
    for (const wait of [0, 60, 300, 1200]) {
      const timer = setTimeout(() => (timers.delete(timer), changed()), wait);
      timers.add(timer);
    }
  };
  const observer = new MutationObserver(soon);
  for (const node of [document.body, document.documentElement]) {
    observer.observe(node, {
      attributes: true,
      attributeFilter: [
        "class",
        "style",
        "theme",
        "data-theme",
        "data-jp-theme-light",
        "data-jp-theme-name",
        "data-vscode-theme-kind",
      ],
    });
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", soon);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", soon);
    timers.forEach(clearTimeout);
  };
}

/** The colours of the canvases, read from the style of the root. */
export function readTheme(root) {
  const style = getComputedStyle(root);
  const at = (name) => style.getPropertyValue(name).trim();
  return {
    background: rgba(style.backgroundColor),
    backgroundText: style.backgroundColor,
    ink: at("--ink"),
    soft: at("--soft"),
    line: at("--line"),
    faint: at("--faint"),
    accent: at("--accent"),
    warn: at("--warn"),
    veil: at("--veil"),
    dark: root.classList.contains("dark"),
    font: style.fontFamily,
  };
}
