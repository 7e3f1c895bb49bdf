// The packages are those of the Lab extension, which this page shares its parts with.
module.exports = {
  testEnvironment: 'node',
  testMatch: ['<rootDir>/src/__tests__/**/*.spec.{ts,tsx}'],
  modulePaths: ['<rootDir>/../lab/node_modules'],
  transform: { '\\.tsx?$': require.resolve('../lab/node_modules/@swc/jest') }
};
