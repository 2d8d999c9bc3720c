#!/usr/bin/env node
// The installed command: what `npm run build` left in dist/.
import '../dist/main.js'
