// The tests cover what has no JupyterLab in it, so they need no browser and start in a second.
module.exports = {
  testEnvironment: 'node',
  testMatch: ['<rootDir>/src/__tests__/**/*.spec.{ts,tsx}'],
  modulePathIgnorePatterns: ['<rootDir>/gpuspawner_lab/'],
  transform: { '\\.tsx?$': '@swc/jest' }
};
