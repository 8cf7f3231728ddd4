// An Express origin that serves only visitors whom usher has let in.

import express from "express";
import { requireAdmission } from "./admission.js";

const port = Number(process.env.PORT ?? 9000);
const room = process.env.ROOM ?? "main";
const jwks = process.env.JWKS ?? "http://127.0.0.1:8080/.usher/.well-known/jwks.json";

const app = express();
app.disable("x-powered-by");
app.get("/", (req, res) => res.type("html").send(`<!doctype html><title>An origin</title>
<p>This page is for everybody. <a href="/checkout">The checkout</a> is for those whom usher has let in.
<form method="post" action="/checkout/done"><button>Done: let the next one in</button></form>
`));
app.get("/health", (req, res) => res.end()); // outside: no visitor, no token
app.use("/checkout", requireAdmission({ room, jwks }));

app.get("/checkout", (req, res) => {
  const { room, ticketId, expires } = req.admission;
  res.json({ room, ticket_id: ticketId, header: req.get("X-Usher-Ticket-Id"), expires });
});

// A finished purchase: usher's proxy sees the header and lets the next visitor in.
app.post("/checkout/done", (req, res) => res.set("Usher-Session", "end").status(204).end());

const server = app.listen(port, "127.0.0.1", (err) => {
  if (err) {
    console.error(`origin: ${err.message}`);
    process.exit(1);
  }
  console.log(`origin on http://127.0.0.1:${server.address().port}
  /          for everybody
  /checkout  only for those whom usher has let into room "${room}"
  usher's keys: ${jwks}`);
});
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.on(signal, () => {
    server.close(() => process.exit(0));
    server.closeAllConnections();
  });
}
