/** Runs the program of a page in headless Chromium, on an origin of its own, as any web page has one. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import { HTTP, releasedDescriptor } from "./demo.mjs";

const PAGES = path.join(path.dirname(fileURLToPath(import.meta.url)), "pages");
const SETTINGS = {
  baseUrl: HTTP.replace(/\/v1$/, ""),
  descriptor: releasedDescriptor().toString("base64"),
};

/** Returns what the page's default export returns for the settings; throws what it throws. */
export async function inBrowser(page) {
  const program = `import main from ${JSON.stringify(path.join(PAGES, page))};
    main(${JSON.stringify(SETTINGS)}).then((found) => ({ found }), (error) => ({ error: String(error.stack) }))
      .then((told) => fetch("/told", { method: "POST", body: JSON.stringify(told) }));`;
  const { outputFiles } = await build({
    stdin: { contents: program, resolveDir: PAGES }, bundle: true, write: false, format: "iife",
  });
  const [told, server] = serving(outputFiles[0].text);
  await once(server.listen(0, "127.0.0.1"), "listening");
  const profile = await mkdtemp(path.join(os.tmpdir(), "page-"));
  const browser = spawn("chromium", [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server",
    `--user-data-dir=${profile}`, `http://127.0.0.1:${server.address().port}/`,
  ], { stdio: "ignore" });
  const ended = once(browser, "exit");
  try {
    const { found, error } = await Promise.race([
      told,
      ended.then(() => { throw new Error("chromium has ended"); }),
    ]);
    if (error) throw new Error(error);
    return found;
  } finally {
    browser.kill();
    await ended.catch(() => {});
    server.closeAllConnections();
    server.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}

/** Returns what the page will tell, and a server of it. */
function serving(script) {
  let server;
  const told = new Promise((resolve) => {
    server = http.createServer(async (request, response) => {
      if (request.method === "POST") {
        const parts = [];
        for await (const part of request) parts.push(part);
        response.end();
        resolve(JSON.parse(Buffer.concat(parts)));
      } else if (request.url === "/") {
        response.setHeader("content-type", "text/html");
        response.end('<!doctype html><meta charset="utf-8"><script src="/page.js"></script>');
      } else {
        response.setHeader("content-type", "text/javascript; charset=utf-8");
        response.end(request.url === "/page.js" ? script : "");
      }
    });
  });
  return [told, server];
}
