// 4. Why it was this fast

byId("reasons").append(...data.reasons.map((line) => make("li", line)));
for (const { caption, columns, rows } of data.charts) {
  const lines = rows.map(([cells, share, kind]) => [...cells, bar(kind, share)]);
  if (rows.length) byId("charts").append(table(caption, [...columns, ""], lines));
}
for (const [name, ...cells] of data.table) {
  byId("figures").tBodies[0].append(
    make("tr", make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", cell))),
  );
}
