// Builds the page's program and style into the service, which serves them. One React: the Lab extension's.
import { readFileSync, mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const packages = join(here, '../lab/node_modules');
const { rspack } = createRequire(join(packages, 'index.js'))('@rspack/core');
const out = join(here, '../../gpuspawner/service/panel/static');

// The parts that JupyterLab's panel has too, and then our own.
const styles = ['style/colours.css', '../lab/style/base.css', '../lab/style/panel.css', 'style/page.css', 'style/lists.css'];

const compiler = rspack({
  context: here,
  mode: 'production',
  devtool: false,
  target: 'web',
  entry: './src/index.tsx',
  output: { path: out, filename: 'panel.js' },
  resolve: { extensions: ['.tsx', '.ts', '.js'], modules: [packages] },
  performance: { hints: false },
  module: {
    rules: [
      {
        test: /\.tsx?$/,
        loader: 'builtin:swc-loader',
        options: { jsc: { parser: { syntax: 'typescript', tsx: true }, target: 'es2022' } },
        type: 'javascript/auto'
      }
    ]
  }
});
compiler.run((error, stats) => {
  if (error || stats.hasErrors()) {
    console.error(error ?? stats.toString({ errors: true, all: false }));
    process.exit(1);
  }
  mkdirSync(out, { recursive: true });
  writeFileSync(join(out, 'panel.css'), styles.map(name => readFileSync(join(here, name), 'utf8')).join('\n'));
  compiler.close(() => undefined);
});
